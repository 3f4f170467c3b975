"""Applies and restores settings in order, always with a journal.

Undo is derived: the value read before a change is written back, newest change first. No kind of
setting is known by name here. Long, because all that is applied is undone by the same entries.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.settings import link_flap, refusal
from udpbench.agent.settings.handlers import KINDS
from udpbench.agent.settings.journal import Entry, Journal
from udpbench.agent.settings.kind import EVERY, Kind
from udpbench.agent.settings.protected import diverting, protected
from udpbench.errors import RestoreError, SettingRefused, next_step
from udpbench.model.host import Change, Planned, Setting
from udpbench.model.limits import Scope
from udpbench.setting_kinds import show_values

SETTLE_S = 2.0
"""Duplicate address detection takes a second (RFC 4862)."""


def _interface(setting: Setting) -> str:
    return setting.target.partition("/")[0]


def _slashed(setting: Setting) -> str:
    """Return one notation for names that use dots or slashes."""
    return f"{setting.kind} {setting.target.replace('.', '/')}"


@dataclass(eq=False)
class _Applied:
    """A setting in force, and the journal's last numbers before and after it was applied."""

    change: Change
    before_seq: int
    last_seq: int

    @property
    def place(self) -> tuple[str, ...]:
        return _place(self.change.setting)


def _place(setting: Setting) -> tuple[str, ...]:
    return setting.kind, setting.target, setting.scope, str(setting.optional)


def _held(setting: Setting) -> tuple[Any, ...]:
    return _place(setting), setting.value


class Engine:
    """The settings in force in one namespace.

    ``scopes`` were assigned by the controller; settings outside them are refused.
    """

    def __init__(
        self,
        host: Host,
        journal: Journal,
        scopes: Collection[Scope],
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self._host = host
        self._journal = journal
        self._scopes = scopes
        self._kinds = kinds
        self._altered_kinds = {name for kind in kinds.values() for name in kind.alters}
        self._witnesses = [name for name, kind in kinds.items() if kind.is_witness]
        self._in_force: list[_Applied] = []
        """In the order in which they were applied."""
        self._protected: Optional[frozenset[str]] = None
        self._apart: dict[tuple[str, str], bool] = {}

    @property
    def in_force(self) -> tuple[Change, ...]:
        """Changes applied and not undone, in order."""
        return tuple(applied.change for applied in self._in_force)

    def apply(self, settings: Sequence[Setting]) -> tuple[Change, ...]:
        """Make these settings, in this order, the only ones in force, and return all changes.

        Keeps the longest common prefix of old and new settings; where they differ only in settings
        that are apart, all but these. A refused optional setting has ``after`` equal to ``before``.
        Raises SettingRefused after undoing what this call applied; RestoreError if something could
        not be undone.
        """
        kept = self._staying(settings)
        self._undo_others({*kept.values()})
        result = dict(kept)
        for number, setting in enumerate(settings):
            if number in kept:
                if kept[number].change.setting is not setting:
                    kept[number].change = replace(kept[number].change, setting=setting)
                continue
            before_seq = self._journal.last_seq
            try:
                change = self._apply_one(setting)
            except SettingRefused as refused:
                self._undo_refused({*kept.values()}, refused)
                raise
            result[number] = _Applied(change, before_seq, self._journal.last_seq)
            self._in_force.append(result[number])
        return tuple(result[number].change for number in range(len(settings)))

    def plan(self, settings: Sequence[Setting]) -> tuple[Planned, ...]:
        """Read only; a value that exists only after an earlier setting is None."""
        planned: list[Planned] = []
        coming: set[str] = set()
        changing: set[tuple[str, str]] = set()
        for setting in settings:
            plan = self._planned(setting)
            if plan.refusal is None and (plan.now is None or plan.now is False):
                coming.add(setting.target)  # also an interface that is down: it is taken up first
            elif plan.refusal and coming & set(re.split(r"[./]", setting.target)):
                plan = Planned(setting, None, self._not_allowed(setting))
            elif plan.refusal and self._may_appear(setting, changing):
                plan = Planned(setting, None)
            if not plan.as_wanted and plan.refusal is None:
                changing.add((_interface(setting), setting.kind))
            planned.append(plan)
        return tuple(planned)

    def _may_appear(self, setting: Setting, changing: Collection[tuple[str, str]]) -> bool:
        """Return whether other changes on its interface may create what a setting needs."""
        interface = _interface(setting)
        kind = self._kinds.get(setting.kind)
        if kind is not None and (interface, kind.needs) in changing:
            return True
        return any(other == interface for other, _ in changing) and self._is_absent(setting)

    def _is_absent(self, setting: Setting) -> bool:
        """Return whether a queue or thread is missing that another setting may create."""
        try:
            self._kind(setting).read(self._host, setting.target)
        except (refusal.Unrestored, *refusal.FAILURES) as error:
            return refusal.is_gone(error) or getattr(error, "errno", None) == errno.ENXIO
        return False

    def altered(self) -> tuple[Change, ...]:
        """Return settings changed by another process: the value in force and the current one.

        Compares with the requested value, because a later setting may change other parts of what
        an earlier one reads; for a rounded value with the rounded one. A value that can no longer
        be read is None.
        """
        last = {(change.setting.kind, change.setting.target): change for change in self.in_force}
        altered = [self._altered(change) for change in last.values()]
        return tuple(change for change in altered if change is not None)

    def _altered(self, change: Change) -> Optional[Change]:
        kind = self._kinds[change.setting.kind] if change.refusal is None else None
        if kind is None or not kind.stays:
            return None
        expected = change.after if change.rounded else change.setting.value
        try:
            now = kind.read(self._host, change.setting.target)
            if kind.same(expected, now):
                return None
        except refusal.FAILURES:
            now = None
        return replace(change, before=change.after, after=now)

    def restore(self, force: bool = False) -> tuple[Change, ...]:
        """Undo everything in the journal, newest first; return each value before and after.

        Continues after a failure and raises RestoreError at the end. A value changed by another
        process is left as it is and counts as a failure, unless ``force``.
        """
        self._in_force.clear()
        return self._undo_after(0, force)

    def _staying(self, settings: Sequence[Setting]) -> dict[int, _Applied]:
        """Return the number of a setting → what is in force of it and stays."""
        held = {applied.place: applied for applied in self._in_force}
        places = [_place(setting) for setting in settings]
        kept = {
            number: held[place]
            for number, place in enumerate(places)
            if place in held and held[place].change.setting.value == settings[number].value
        }
        single = len(held) == len(self._in_force) and len({*places}) == len(places)
        staying = {*kept.values()}
        going = [applied for applied in self._in_force if applied not in staying]
        in_force = [applied.change.setting for applied in self._in_force]
        if single and self._bound(in_force) == self._bound(settings) and self._alone(going):
            return kept
        alike = zip(in_force, settings)
        prefix = takewhile(lambda pair: _held(pair[0]) == _held(pair[1]), alike)
        return dict(enumerate(self._in_force[: len(list(prefix))]))

    def _bound(self, settings: Sequence[Setting]) -> list[tuple[Any, ...]]:
        """Return the settings that are not apart, in order."""
        return [_held(each) for each in settings if not self._is_apart(each)]

    def _is_apart(self, setting: Setting) -> bool:
        place = setting.kind, setting.target
        if place not in self._apart:
            self._apart[place] = False
            with suppress(KeyError, ValueError):  # refused, when it is applied
                self._apart[place] = self._kinds[setting.kind].is_apart(setting.target)
        return self._apart[place]

    def _alone(self, applied: Sequence[_Applied]) -> bool:
        """Return whether nothing else was journalled with any of these, to be restored last."""
        journalled = [entry.seq for entry in self._journal.pending]
        return all(
            sum(each.before_seq < seq <= each.last_seq for seq in journalled) <= 1
            for each in applied
        )

    # --- applying ------------------------------------------------------------------------------

    def _not_allowed(self, setting: Setting) -> Optional[str]:
        """Return why the agent must not read a setting; None if it may."""
        if setting.kind not in self._kinds:
            return f"this agent does not know kind {setting.kind}"
        if setting.scope not in self._scopes:
            given = ", ".join(self._scopes) or "none"
            return f"scope {setting.scope} is outside this agent's scopes ({given})"
        return None

    def _planned(self, setting: Setting) -> Planned:
        """Return the current value, or why it cannot be read or must not be changed."""
        reason = self._not_allowed(setting)
        if reason is not None:
            return Planned(setting, None, reason)
        try:
            kind = self._kinds[setting.kind]
            now = kind.read(self._host, setting.target)
            # Comparing first, for every kind, fails for an invalid value.
            as_wanted = kind.same(setting.value, now)
            danger = None if as_wanted else self._danger(kind, setting)
            if not as_wanted and danger is None:
                kind.check(self._host, setting.target, setting.value, now)
                self._check_destroyed(kind, setting)
                self._check_reset(kind, setting, now)
                if kind.may_flap(self._host, _interface(setting)):
                    link_flap.check_flap(self._host, _interface(setting))
        except refusal.FAILURES as error:
            return Planned(setting, None, refusal.why(setting, error))
        return Planned(setting, now, danger, as_wanted)

    def _check_destroyed(self, kind: Kind, setting: Setting) -> None:
        """Raise OSError if a change would destroy what could not be restored as it was."""
        target = _interface(setting)
        for name in kind.alters if kind.destroys else ():
            kept = self._kept_entry(name, target)
            other = self._kinds[name]
            before = other.read(self._host, target) if kept is None else kept.before
            other.check(self._host, target, None, before)

    def _check_reset(self, kind: Kind, setting: Setting, now: Any) -> None:
        """Raise ValueError if others would get other values than they have without this run."""
        resets = kind.resets(self._host, setting.target, setting.value, now)
        if not resets:
            return
        before = {_slashed(entry.setting): str(entry.before) for entry in self._journal.pending}
        lost = [other.target for other in resets if before.get(_slashed(other)) != other.value]
        if lost:
            raise ValueError(
                f"the kernel would reset {link_flap.listed(lost)}, for good; choose a value that "
                "keeps IPv6, or set them to those of net/ipv6/conf/default before the run"
            )

    def _kept_entry(self, name: str, target: str) -> Optional[Entry]:
        """Return the journalled value of a kind that other kinds alter."""
        kept = (entry for entry in self._journal.pending if entry.setting.kind == name)
        return next((entry for entry in kept if entry.setting.target == target), None)

    def _kept(self, kind: Kind, setting: Setting) -> Iterator[tuple[Setting, Any]]:
        """Yield what a change alters besides, to be journalled first and so restored last."""
        if not self._journal.identity.ends_with_run:
            yield from self._witnessed(kind, setting)
        target = _interface(setting)
        for name in kind.alters:
            if self._kept_entry(name, target) is None:
                kept = Setting(name, target, None, scope=setting.scope)
                yield kept, self._kinds[name].read(self._host, target)

    def _witnessed(self, kind: Kind, setting: Setting) -> Iterator[tuple[Setting, Any]]:
        """Yield what an interface has before its first change."""
        target = kind.interface(setting.target)
        for name in self._witnesses:
            if self._kept_entry(name, target) is None and self._index(setting) is not None:
                value = self._kinds[name].read(self._host, target)
                yield Setting(name, target, None, scope=setting.scope), value

    def _danger(self, kind: Kind, setting: Setting) -> Optional[str]:
        """Return how a change could disconnect the controller; None if it cannot."""
        if kind.diverts and diverting(self._host, setting.target):
            return (
                "it would divert the packets of the SSH connection; choose a network "
                "without the controller's address, or set it by hand before the run"
            )
        interface = kind.disturbed(setting.target)
        if not interface:
            return None
        if self._protected is None:
            self._protected = protected(self._host)
        carrying = ", ".join(sorted(self._protected))
        if interface == EVERY and self._protected:
            return (
                f"the SSH connection uses {carrying}, and this acts on every interface and could "
                "cut it; set it for the interface of the measurement, or by hand before the run"
            )
        if interface not in self._protected:
            return None
        return (
            f"the SSH connection uses {interface} (carried by {carrying}), and this could cut "
            "it; measure over another interface, or set it by hand before the run"
        )

    def _apply_one(self, setting: Setting) -> Change:
        """Apply one setting; a refused optional setting changes nothing."""
        plan = self._planned(setting)
        why = plan.refusal
        if why is None:
            kind = self._kinds[setting.kind]
            if plan.as_wanted:
                return Change(setting, plan.now, plan.now)
            after, why = self._write(kind, setting, plan.now)
            if why is None:
                rounded = not kind.same(setting.value, after)
                return Change(setting, plan.now, after, rounded=rounded)
        if setting.optional:
            return Change(setting, plan.now, plan.now, why)
        raise SettingRefused(refusal.sentence(setting, why))

    def _write(self, kind: Kind, setting: Setting, before: Any) -> tuple[Any, Optional[str]]:
        """Journal, write, read back; return the new value, or undo and return the reason."""
        start = self._journal.last_seq
        try:
            kept = tuple(self._kept(kind, setting))
        except refusal.FAILURES as error:
            return None, refusal.why(setting, error)
        try:
            for other, value in kept:
                self._journal.begin(other, value, self._index(other))
            entry = self._journal.begin(setting, before, self._index(setting))
        except OSError as error:
            what = f"cannot write the journal {self._journal.path}: {error.strerror}"
            return None, f"{what}; {next_step(error.errno)}"
        try:
            with self._during_write(kind, entry):
                kind.write(self._host, setting.target, setting.value)
            after = kind.read(self._host, setting.target)
            self._journal.applied(entry, after)
        except refusal.FAILURES as error:
            why = refusal.why(setting, error, before)
        else:
            if kind.same(setting.value, after) or kind.rounded(setting.value, after):
                return after, None
            why = refusal.unchanged_message(setting, after)
        self._undo_after(start)
        return None, why

    def _index(self, setting: Setting) -> Optional[int]:
        """Return the index of a setting's interface; None if it has none."""
        try:
            return self._host.index(self._kind(setting).interface(setting.target))
        except OSError:
            return None

    @contextmanager
    def _during_write(self, kind: Kind, entry: Entry) -> Iterator[None]:
        """Restore a link that flaps; programs that outlive this agent hold the journal's lock."""
        flapping: AbstractContextManager[None] = nullcontext()
        if kind.may_flap(self._host, _interface(entry.setting)):
            note = partial(self._journal.record_along, entry)
            flapping = link_flap.restored_link(self._host, _interface(entry.setting), note)
        with self._host.lending(self._journal.file), flapping:
            yield

    # --- undoing -------------------------------------------------------------------------------

    def _undo_refused(self, kept: Collection[_Applied], refused: SettingRefused) -> None:
        try:
            self._undo_others(kept)
        except RestoreError as error:
            raise RestoreError(f"{refused.message}\n{error.message}") from refused

    def _undo_others(self, kept: Collection[_Applied]) -> None:
        """Undo all but what is kept."""
        self._in_force = [applied for applied in self._in_force if applied in kept]
        staying = {
            seq
            for applied in self._in_force
            for seq in range(applied.before_seq + 1, applied.last_seq + 1)
        }
        self._undo_entries(entry for entry in self._journal.pending if entry.seq not in staying)

    def _undo_after(self, seq: int, force: bool = False) -> tuple[Change, ...]:
        later = (entry for entry in self._journal.pending if entry.seq > seq)
        return self._undo_entries(later, force)

    def _undo_entries(self, pending: Iterable[Entry], force: bool = False) -> tuple[Change, ...]:
        failures: dict[int, str] = {}
        entries = sorted(pending, key=lambda entry: -entry.seq)
        undone: list[Change] = []
        for entry in entries:
            change = self._undo(entry, force, failures)
            if change is not None:
                undone.append(change)
            # Older than a failed change, whose later undoing may change it again: it stays in
            # the journal, to be checked after that.
            if not failures:
                self._journal.undone(entry)
        # What failed may have disappeared with something undone later, such as its interface.
        left = [entry for entry in entries if entry.seq in failures and not self._is_gone(entry)]
        if left:
            raise RestoreError("\n".join(failures[entry.seq] for entry in left))
        left_over = {entry.seq for entry in entries} if failures else set()
        for entry in self._journal.pending:
            if entry.seq in left_over:
                self._journal.undone(entry)
        return tuple(undone)

    def _undo(self, entry: Entry, force: bool, failures: dict[int, str]) -> Optional[Change]:
        """Write back the previous value; targets that no longer exist need nothing.

        The interface is found by index, in case it was renamed.
        """
        entry, there = self._by_present_name(entry)
        setting = entry.setting
        if not there:
            if setting.kind in self._witnesses:
                return None
            if not force and self._is_elsewhere(entry):
                failures[entry.seq] = (
                    f"{setting.kind} {setting.target}: the interface was moved to another network "
                    "namespace and keeps this setting (udpbench restore --force forgets it); by "
                    f"hand there: {refusal.by_hand(self._host, setting, entry.before)}"
                )
                return None
            return None if setting.kind in self._altered_kinds else Change(setting, None, None)
        now = put_back = None
        if setting.kind in self._witnesses:
            if not failures and not force:
                self._compare(entry, failures)
            return None
        try:
            kind = self._kind(setting)
            now = kind.read(self._host, setting.target)
            try:
                self._restore_link(entry, force)
            finally:
                put_back = self._write_back(kind, entry, now, force)
        except Exception as error:  # noqa: BLE001 - one kind's fault must not keep others in force
            if not refusal.is_gone(error) or not self._is_gone(entry):
                command = refusal.by_hand(self._host, setting, entry.before)
                why = refusal.why(setting, error)
                failures[entry.seq] = f"{setting.kind} {setting.target}: {why}; by hand: {command}"
                return None
        if setting.kind in self._altered_kinds and now == put_back:
            return None
        return Change(setting, now, put_back)

    def _compare(self, entry: Entry, failures: dict[int, str]) -> None:
        """Note what an interface has lost although every setting was put back.

        The kernel makes link-local addresses and their routes a moment after a link is up.
        """
        kind, target = self._kind(entry.setting), entry.setting.target
        with suppress(OSError):
            self._host.wait_for(
                "its state",
                lambda: kind.same(entry.before, kind.read(self._host, target)),
                SETTLE_S,
            )
            return
        lost = link_flap.listed(kind.lost(entry.before, kind.read(self._host, target)))
        failures[entry.seq] = (
            f"{target} is not as it was before the run: {lost}; by a setting or another program; "
            "set it back by hand, then type: udpbench restore (--force leaves it as it is)"
        )

    def _restore_link(self, entry: Entry, force: bool) -> None:
        """Restore what a link lost when an agent was killed while it was down."""
        if not entry.along or entry.index is None:
            return
        have = link_flap.attached(self._host, entry.index)
        try:
            link_flap.restore_missing(self._host, entry.along, have)
        except OSError as error:
            if not force:
                raise refusal.Unrestored(
                    f"what its link lost {error.strerror} (udpbench restore --force skips this)"
                ) from error

    def _by_present_name(self, entry: Entry) -> tuple[Entry, bool]:
        """Return a change under its interface's current name, and whether that still exists."""
        if entry.index is None or entry.setting.kind not in self._kinds:
            return entry, True
        name = self._host.name_of(entry.index)
        if name is None:
            return entry, False
        target, before = entry.setting.target, entry.before
        kind = self._kind(entry.setting)
        if name != kind.interface(target):
            target, before = kind.renamed(target, before, name)
        setting = replace(entry.setting, target=target)
        return replace(entry, setting=setting, before=before), True

    def _is_elsewhere(self, entry: Entry) -> bool:
        """Return whether an interface that is no longer here is in another namespace."""
        interface = self._kind(entry.setting).interface(entry.setting.target)
        return entry.index is not None and self._host.is_elsewhere(entry.index, interface)

    def _is_gone(self, entry: Entry) -> bool:
        """Return whether nothing is left to undo; ENODEV from a write does not prove it."""
        entry, there = self._by_present_name(entry)
        if not there:
            return not self._is_elsewhere(entry)
        try:
            kind = self._kind(entry.setting)
            now = kind.read(self._host, entry.setting.target)
            return not entry.along and kind.same(entry.before, now)
        except Exception as error:  # noqa: BLE001 - as in _undo: it counts as not gone
            # A driver may return ENODEV for a card in runtime suspend: the interface exists.
            asleep = entry.index is not None and getattr(error, "errno", None) == errno.ENODEV
            return refusal.is_gone(error) and not asleep

    def _kind(self, setting: Setting) -> Kind:
        if setting.kind not in self._kinds:
            raise refusal.Unrestored(f"this agent does not know kind {setting.kind}")
        return self._kinds[setting.kind]

    def _write_back(self, kind: Kind, entry: Entry, now: Any, force: bool) -> Any:
        if kind.same(entry.before, now):
            return now
        if entry.applied and not force and not kind.alike(entry.after, now):
            texts = show_values(entry.setting.kind, entry.before, entry.after, now)
            before, after, present = texts
            raise refusal.Unrestored(
                f"another process changed it: udpbench set it from {before} to {after}, now it is "
                f"{present}; left as is (udpbench restore --force overwrites it)"
            )
        with self._during_write(kind, entry):
            kind.write(self._host, entry.setting.target, entry.before)
        put_back = kind.read(self._host, entry.setting.target)
        if not kind.alike(entry.before, put_back):
            before, got = show_values(entry.setting.kind, entry.before, put_back)
            raise refusal.Unrestored(f"set back to {before}, read back {got}")
        return put_back
