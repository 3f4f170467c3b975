"""The commented experiment that ``udpbench init --experiment`` writes as a starting point."""

EXPERIMENT = """\
# Every key: docs/experiments.md. To check it: udpbench plan {path}; to run it: udpbench run {path}

# The question that the run answers; it heads the report.
question: How many 64-byte datagrams per second does one receiving worker take?

# What is sent. Without a rate, the sender sends as fast as it can.
traffic: {{size: 64B}}

# How it is sent and received.
send: {{workers: 1}}
receive: {{workers: 1, buffer: 4MiB}}

# A sweep measures one point per value; this one compares two batch sizes.
sweep:
  receive.batch: [1, 64]

# Trials of each point, in random order; their warm-up and their measured time.
repetitions: 3
warmup: 200ms
duration: 1s

# What must hold; the exit code is 0 if it does, 1 if not.
expect:
  - received_packets > 0
  - unaccounted == 0
"""
