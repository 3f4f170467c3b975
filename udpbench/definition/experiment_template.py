"""The text of the experiment that ``udpbench init --experiment`` writes: a start, with comments."""

EXPERIMENT = """\
# Every key: docs/experiments.md. To check it: udpbench plan {path}; to run it: udpbench run {path}

# What the run is to answer; it heads the report.
question: How many 64-byte datagrams per second does one receiving worker take?

# What is sent. Without a rate, as much as the sender can.
traffic: {{size: 64B}}

# How it is sent and received.
send: {{workers: 1}}
receive: {{workers: 1, buffer: 4MiB}}

# A sweep measures a point for each value; this one compares two sizes of a call's batch.
sweep:
  receive.batch: [1, 64]

# Each point is measured this often, in random order: once warmed up, for this long.
repetitions: 3
warmup: 200ms
duration: 1s

# What must hold; the exit code is 0 if it does, 1 if not.
expect:
  - received_packets > 0
  - unaccounted == 0
"""
