"""The order of a program's operations that needs the least memory, proved where the search ends.

Peak memory over all topological orders is a bottleneck shortest path through the sets of operations that may have
run. Three facts keep that small. An operation that is before or after every other one splits the program (Liu, "An
application of generalized tree pebbling to sparse matrix factorization", 1987, for trees). What frees at least as much
as it allocates, and fits, can run at once: live bytes are a submodular function of what has run, so that nothing later
is worse for it. What frees nothing can wait for its first reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate, count

from pytest_modelbudget.graph.graph import Graph, Op, lifetimes, live_nbytes
from pytest_modelbudget.graph.tensor import Storage, Tensor

MOST_STATES = 100_000  # sets of operations looked at in one part of a program, before the search gives up
MOST_STEPS = 5_000_000  # the same times the operations of the part: a set of many takes longer to look at
MOST_UNITS = 4_000  # operations of one part; a larger part stays in the order of the program


@dataclass(frozen=True, slots=True)
class BestOrder:
    """The best order found, its peak, and a peak that no order is below; the two are equal where it is proved.

    order holds positions in the program as written.
    """

    order: tuple[int, ...]
    nbytes: int
    bound: int

    @property
    def proved(self) -> bool:
        return self.nbytes == self.bound


def best_order(graph: Graph, *, most_states: int = MOST_STATES) -> BestOrder:
    """The order with the least peak. Operations of loop bodies stay where they are, and all others around them."""
    program = _Program(graph)
    order: list[int] = []
    edges = [{tensor.storage for tensor in edge} for edge in (graph.inputs, graph.outputs)]  # of every order
    bound = max(sum(storage.nbytes for storage in edge if storage.is_activation) for edge in edges)
    for part in program.parts():
        run, proved = _Search(part, at_least=bound, most_states=most_states).run()
        bound = max(bound, proved)
        order.extend(part.positions[unit] for unit in run)
    complete = program.with_waiting(order)
    written = tuple(range(len(graph.ops)))
    peak, as_written = _peak(graph, complete), _peak(graph, written)
    if as_written <= peak:
        complete, peak = written, as_written
    return BestOrder(complete, peak, min(bound, peak))


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The program with its operations in another order. Raises GraphError where that is no valid program."""
    return replace(graph, ops=tuple(graph.ops[position] for position in order))


def _peak(graph: Graph, order: Sequence[int]) -> int:
    program = reordered(graph, order)
    return max(live_nbytes(lifetimes(program), positions=max(len(order), 1)))


# What must come before what.


class _Program:
    """Which operations wait for which, and the memory that each of them touches."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.before = _dependencies(graph.ops)
        alive = lifetimes(graph)
        self.touched: list[set[Storage]] = [set() for _ in graph.ops]
        for position, op in enumerate(graph.ops):
            if not op.is_shape_computation:
                touched = {tensor.storage for tensor in (*op.tensors(), *op.outputs)}
                self.touched[position] = {storage for storage in touched if storage in alive}
        self.inputs = {tensor.storage for tensor in graph.inputs}
        self.outputs = {tensor.storage for tensor in graph.outputs}
        read = set().union(*self.touched)
        self.unread = sum(
            s.nbytes for s in self.inputs - read - self.outputs if s in alive
        )  # they live during the first
        self.handed_on = sum(s.nbytes for s in (self.inputs & self.outputs) - read if s in alive)
        self.shield = next((p for p, needs in enumerate(self.before) if not needs and not self.touched[p]), None)
        self.waiting = self._waiting()

    def _waiting(self) -> frozenset[int]:
        """Operations that read no activation, and touch the memory of one result at most: each can wait for its reader.

        Of several results, the others would live from the first reader of any, and not from their own.
        """
        readers: defaultdict[int, list[int]] = defaultdict(list)
        for position, before in enumerate(self.before):
            for earlier in before:
                readers[earlier].append(position)
        waiting: set[int] = set()
        for position, op in enumerate(self.graph.ops):
            fresh = {output.storage for output in op.fresh_outputs}
            reads = self.touched[position] - fresh
            returned = fresh & self.outputs
            is_free = not self.touched[position] or not self.unread
            has_one = len(self.touched[position]) <= 1
            if is_free and has_one and not op.mutates and not op.run and not reads and not returned:
                waiting.add(position)
        # A reader that waits itself would pass the memory on: then it is no longer free to wait.
        return frozenset(p for p in waiting if not self.touched[p] or not waiting.intersection(readers[p]))

    def parts(self) -> Iterator[_Part]:
        """The program cut after every operation that comes before or after each of the others."""
        units = [position for position in range(len(self.graph.ops)) if position not in self.waiting]
        index = {position: unit for unit, position in enumerate(units)}
        before = [{index[p] for p in self._ancestors_that_run(position)} for position in units]
        start = 0
        touchers = self._touchers(units)
        begun = self._begun(touchers, len(units))
        for end in _cuts(before):
            part = self._part(units, before, touchers, start, end + 1)
            part.base += begun[start]
            yield part
            start = end + 1

    def _ancestors_that_run(self, position: int) -> Iterator[int]:
        stack, seen = list(self.before[position]), set[int]()
        while stack:
            earlier = stack.pop()
            if earlier not in self.waiting:
                yield earlier
            elif earlier not in seen:
                seen.add(earlier)
                stack.extend(self.before[earlier])

    def _touchers(self, units: Sequence[int]) -> dict[Storage, list[int]]:
        """The units between whose first and last a memory lives. What waits leaves that to its readers."""
        touchers: dict[Storage, list[int]] = defaultdict(list)
        for unit, position in enumerate(units):
            for storage in self.touched[position]:
                touchers[storage].append(unit)
        return touchers

    def _begun(self, touchers: dict[Storage, list[int]], end: int) -> list[int]:
        """Bytes that live already where each unit begins."""
        change = [0] * (end + 1)
        for storage, users in touchers.items():
            change[0 if storage in self.inputs else users[0] + 1] += storage.nbytes
            change[end if storage in self.outputs else users[-1] + 1] -= storage.nbytes
        return list(accumulate(change))

    def _part(
        self, units: Sequence[int], before: Sequence[set[int]], touchers: dict[Storage, list[int]], start: int, end: int
    ) -> _Part:
        local = [frozenset(p - start for p in before[unit] if p >= start) for unit in range(start, end)]
        part = _Part(tuple(units[start:end]), tuple(local), [[] for _ in range(end - start)], base=self.handed_on)
        if start == 0 and self.shield is None:
            part.unread = self.unread
        inside: dict[Storage, list[int]] = defaultdict(list)
        for unit in range(start, end):
            for storage in self.touched[units[unit]]:
                inside[storage].append(unit - start)
        for storage, users in inside.items():
            starts = storage in self.inputs or touchers[storage][0] < start
            stays = storage in self.outputs or touchers[storage][-1] >= end
            memory = _Memory(storage.nbytes, sum(1 << unit for unit in users), starts, stays)
            part.live += memory.nbytes if starts else 0
            part.base -= memory.nbytes if starts else 0
            for unit in users:
                part.memories[unit].append(memory)
        return part

    def with_waiting(self, order: Sequence[int]) -> tuple[int, ...]:
        """The whole order: what waits right before its first reader; what nobody needs at the end."""
        complete: dict[int, None] = {}

        def run(position: int) -> None:
            stack = [position]
            while stack:
                missing = [p for p in self.before[stack[-1]] if p in self.waiting and p not in complete]
                if missing:
                    stack.extend(missing)
                else:
                    complete[stack.pop()] = None

        first = [self.shield] if self.unread and self.shield is not None else []
        for position in (*first, *order):
            if position not in complete:
                run(position)
        for position in range(len(self.graph.ops)):
            if position not in complete:
                run(position)
        return tuple(complete)


def _dependencies(ops: Sequence[Op]) -> list[set[int]]:
    """For each operation those that must have run: makers of its tensors, and the order of writes to memory."""
    made: dict[Tensor, int] = {}
    wrote: dict[Storage, int] = {}
    read: defaultdict[Storage, set[int]] = defaultdict(set)
    before: list[set[int]] = []
    loop, since = -1, set[int]()  # the last operation of a loop body, and what came after it
    for position, op in enumerate(ops):
        needs = {made[tensor] for tensor in op.tensors() if tensor in made}
        written = {output.storage for output in (op.outputs if op.mutates else op.fresh_outputs)}
        storages = {tensor.storage for tensor in op.tensors()} | written
        needs |= {wrote[storage] for storage in storages if storage in wrote}
        for storage in written:
            needs |= read.pop(storage, set())
            wrote[storage] = position
        for storage in storages - written:
            read[storage].add(position)
        made.update(dict.fromkeys(op.outputs, position))
        if loop >= 0:
            needs.add(loop)
        since.add(position)
        if op.run:
            needs, loop, since = needs | since, position, set()
        before.append(needs - {position})
    return before


def _cuts(before: Sequence[set[int]]) -> Iterator[int]:
    """Units that every earlier one leads to and every later one needs; the last unit ends the last part."""
    size = len(before)
    first_reader = [size] * size
    for unit, earlier in enumerate(before):
        for one in earlier:
            first_reader[one] = min(first_reader[one], unit)
    last_needed = [max(earlier, default=-1) for earlier in before]
    later = [size] * (size + 1)  # the least of what later units need last
    for unit in range(size - 1, -1, -1):
        later[unit] = min(later[unit + 1], last_needed[unit])
    farthest = -1
    for unit in range(size):
        if unit == size - 1 or (farthest <= unit and later[unit + 1] >= unit):
            yield unit
        farthest = max(farthest, first_reader[unit])


# The search in one part.


@dataclass(frozen=True, slots=True)
class _Memory:
    """A storage seen from one part: it lives from the first to the last of its users, a set as bits."""

    nbytes: int
    users: int
    starts: bool  # it lives before the part
    stays: bool  # it lives after it


@dataclass(slots=True)
class _Part:
    """Units that run between two cuts; before and memories are by unit.

    Bytes: base lives all the time, live at the start, unread during the first unit.
    """

    positions: tuple[int, ...]
    before: tuple[frozenset[int], ...]
    memories: list[list[_Memory]]
    base: int = 0
    live: int = 0
    unread: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    """Units that have run, as bits; those that can run next; and the bytes that live."""

    ran: int
    ready: frozenset[int]
    live: int


class _Search:
    """A bottleneck shortest path from nothing to everything, over sets of units that have run."""

    def __init__(self, part: _Part, *, at_least: int, most_states: int) -> None:
        self._part, self._size = part, len(part.positions)
        self._most_states = min(most_states, MOST_STEPS // max(self._size, 1))
        self._least = max([at_least, *(part.base + sum(m.nbytes for m in used) for used in part.memories)])
        self._after: list[list[int]] = [[] for _ in range(self._size)]
        for unit, before in enumerate(part.before):
            for earlier in before:
                self._after[earlier].append(unit)

    def run(self) -> tuple[Sequence[int], int]:
        """An order of the units, and a peak that no order of them is below."""
        if self._size > MOST_UNITS:
            return range(self._size), self._least
        self._needs = [sum(1 << earlier for earlier in before) for before in self._part.before]
        ready = frozenset(unit for unit, before in enumerate(self._part.before) if not before)
        start = _State(0, ready, self._part.base + self._part.live)
        return self._shortest(start)

    def _shortest(self, start: _State) -> tuple[list[int], int]:
        everything = (1 << self._size) - 1
        least: dict[int, int] = {0: self._least}  # the least peak known to reach a set
        came: dict[int, tuple[int, tuple[int, ...]]] = {}
        ticket = count()
        heap = [(self._least, 0, next(ticket), start)]
        while heap:
            peak, _, _, state = heappop(heap)
            if peak > least[state.ran]:
                continue
            hurried, run = self._hurry(state, peak)
            if run:
                if least.get(hurried.ran, peak + 1) <= peak:
                    continue
                least[hurried.ran], came[hurried.ran] = peak, (state.ran, run)
            if hurried.ran == everything:
                return _path(came, everything), peak
            if len(least) > self._most_states:
                return [*_path(came, hurried.ran), *self._greedy(hurried, peak)], peak
            for unit in hurried.ready:
                needed, following = self._step(hurried, unit)
                reached = max(peak, needed)
                if reached < least.get(following.ran, reached + 1):
                    least[following.ran], came[following.ran] = reached, (hurried.ran, (unit,))
                    heappush(heap, (reached, -following.ran.bit_count(), next(ticket), following))
        raise AssertionError("a program without an order")  # Graph holds valid programs alone

    def _greedy(self, state: _State, peak: int) -> list[int]:
        """The rest of the way by the step that needs least each time."""
        path: list[int] = []
        while state.ready:
            state, run = self._hurry(state, peak)
            path += run
            if state.ready:
                steps = [(*self._step(state, unit), unit) for unit in sorted(state.ready)]
                needed, state, unit = min(steps, key=lambda step: (step[0], step[1].live))
                path.append(unit)
                peak = max(peak, needed)
        return path

    def _step(self, state: _State, unit: int) -> tuple[int, _State]:
        """The bytes that live while a unit runs, and the state after it."""
        needed, live = self._bytes(state.ran, state.live, unit)
        ran = state.ran | 1 << unit
        return needed, _State(ran, (state.ready - {unit}).union(self._made_ready(ran, unit)), live)

    def _bytes(self, before: int, live: int, unit: int) -> tuple[int, int]:
        """The bytes that live while a unit runs behind the units of a set, and after it."""
        ran = before | 1 << unit
        freed = 0 if before else self._part.unread
        needed = live + freed
        for memory in self._part.memories[unit]:
            if not memory.starts and not memory.users & before:
                needed += memory.nbytes
            if not memory.stays and not memory.users & ~ran:
                freed += memory.nbytes
        return needed, needed - freed

    def _made_ready(self, ran: int, unit: int) -> list[int]:
        """The units that can run once a unit, the last of a set, has run, and could not before."""
        return [reader for reader in self._after[unit] if not self._needs[reader] & ~ran]

    def _hurry(self, state: _State, peak: int) -> tuple[_State, tuple[int, ...]]:
        """Run what fits below the peak and leaves no more alive than before, until there is nothing of that kind."""
        path: list[int] = []
        downhill = True
        while downhill:
            downhill = False
            for unit in sorted(state.ready):
                lower, run = self._downhill(state, unit, peak)
                if run:
                    state, downhill = lower, True
                    path += run
                    break
        return state, tuple(path)

    def _downhill(self, start: _State, unit: int, peak: int) -> tuple[_State, list[int]]:
        """A chain of units, each made ready by the one before, until no more lives than at its start."""
        ran, live, run = start.ran, start.live, list[int]()
        while True:  # most chains lead nowhere: their states are not made
            needed, live = self._bytes(ran, live, unit)
            if needed > peak:
                return start, []
            run.append(unit)
            if live <= start.live:
                break
            ran |= 1 << unit
            made_ready = self._made_ready(ran, unit)
            if len(made_ready) != 1:
                return start, []
            (unit,) = made_ready
        state = start
        for unit in run:
            _, state = self._step(state, unit)
        return state, run


def _path(came: dict[int, tuple[int, tuple[int, ...]]], ran: int) -> list[int]:
    runs: list[tuple[int, ...]] = []
    while ran:
        ran, run = came[ran]
        runs.append(run)
    return [unit for run in reversed(runs) for unit in run]
