"""A snapshot of an object and of all objects that it refers to, as data. Pure.

`capture` walks the objects and copies what may change, so that the copies can be encoded later, on another thread. It
reads compiled objects as well as interpreted ones. `restore` fills a fresh object of the same class with what was
captured. The fresh object must be interpreted: a compiled class cannot be instantiated without its arguments.

Functions are not captured, nor the objects of the classes `kept` (what was configured). `restore` takes those of the
fresh object, at the same place. So whatever refers to one must exist in the fresh object already.

A value is a scalar, or a list that begins with a mark. A node is what others may refer to as well: a list that begins
with its kind, in the order in which the walk has met it. Node 0 is the object itself.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

PACKAGES: Final = ("cluster.", "kvtransfer.", "router.")
"""Beginnings of the names of the modules whose objects are captured."""
_COMPILED_FUNCTION = "__mypyc_"
"""How mypyc begins the names of such classes."""
MAX_DEPTH: Final = 150
"""Nodes in nodes. Higher risks Python's stack; lower refuses snapshots of a Scheduler, which has some 15."""
PART_VALUES: Final = 4096
"""Values after which a part ends. More has a part take longer to be encoded, which stops all threads; fewer makes more
parts.
"""
_SIMPLE: Final = frozenset({type(None), bool, float, str, bytes})
_SCALARS: Final = _SIMPLE | {int}
_WORD_BITS: Final = 63
_NODE, _BIG, _ENUM, _KEPT, _TUPLE, _FROZEN, _NAMED, _ABSENT = range(8)
"""Marks of values. A big integer has more than 63 bits. An absent attribute has no value yet."""
_OBJECT, _STRUCT, _LIST, _DICT, _SET, _DEQUE, _ORDERED, _PLAIN_LIST, _PLAIN_DICT, _SHARED_DICT, _COUNTER = range(11)
"""Kinds of nodes. Plain ones have scalars alone. A shared dictionary has the same few integers again and again."""


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    """Some nodes of a snapshot, in order."""

    nodes: list[list[Any]]
    layouts: list[tuple[str, list[str]]] | None
    """The classes by number, as `module:name`, each with attributes. The last part has them, and no other."""


class SnapshotError(ValueError):
    """The snapshot is damaged, or of another version of the Scheduler, or something cannot be captured."""


_PLAIN: Final = frozenset({_PLAIN_LIST, _PLAIN_DICT})

ClassOf = Callable[[str], type | None]
"""The class of a `module:name`. None for one that no snapshot may name."""


def capture(root: object, kept: tuple[type, ...]) -> list[SnapshotPart]:
    """Raises SnapshotError for an object that a snapshot cannot have."""
    walk = _Capture(kept)
    walk.value(root)
    return [*_parts(walk.nodes), SnapshotPart([], walk.layouts)]


def restore(parts: Iterable[SnapshotPart], into: object, class_of: ClassOf) -> None:
    """Raises SnapshotError for a snapshot of anything else than the class of `into`."""
    nodes: list[list[Any]] = []
    layouts: list[tuple[str, list[str]]] = []
    for part in parts:
        nodes += part.nodes
        layouts += part.layouts or []
    try:
        _Restore(nodes, layouts, class_of).into(into)
    except SnapshotError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise SnapshotError(f"the snapshot is damaged or of another version: {error!r}") from error


class _Capture:
    def __init__(self, kept: tuple[type, ...]) -> None:
        self.nodes: list[list[Any]] = []
        self.layouts: list[tuple[str, list[str]]] = []
        self._kept = kept
        self._numbers: dict[int, int] = {}
        """Numbers of nodes by the ids of their objects, which `_alive` keeps from being used again."""
        self._alive: list[object] = []
        self._layouts_of: dict[tuple[type, tuple[str, ...]], int] = {}
        """Layouts of objects whose attributes are in dictionaries."""
        self._values_of: dict[type, Callable[[Any], Any]] = {
            int: _integer,
            tuple: lambda thing: [_TUPLE, *self._each(thing)],
            frozenset: lambda thing: [_FROZEN, *self._each(thing)],
            dict: lambda thing: self._node(thing, self._dict),
            list: lambda thing: self._node(thing, self._list),
            set: lambda thing: self._node(thing, lambda its: [_SET, *self._each(its)]),
            deque: lambda thing: self._node(thing, lambda its: [_DEQUE, its.maxlen, *self._each(its)]),
            Counter: lambda thing: self._node(thing, lambda its: [_COUNTER, *self._each(_flat(its))]),
            OrderedDict: lambda thing: self._node(thing, lambda its: [_ORDERED, *self._each(_flat(its))]),
        }
        self._depth = 0

    def value(self, thing: object) -> Any:
        kind = type(thing)
        if kind in _SIMPLE:
            return thing
        captured = self._values_of.get(kind)
        if captured is None:
            captured = self._values_of[kind] = self._of_kind(thing)
        return captured(thing)

    def _of_kind(self, thing: object) -> Callable[[Any], Any]:
        """What captures the things of one class."""
        kind = type(thing)
        if issubclass(kind, self._kept) or (callable(thing) and _is_function(kind)):
            return lambda _: [_KEPT]
        if not kind.__module__.startswith(PACKAGES):
            raise SnapshotError(f"a snapshot cannot have an object of {kind}")
        if issubclass(kind, Enum):
            number = self._layout(kind, ())
            return lambda member: [_ENUM, number, member.value]
        if issubclass(kind, tuple):
            number = self._layout(kind, ())
            return lambda its: [_NAMED, number, *self._each(its)]
        if issubclass(kind, msgspec.Struct):
            number = self._layout(kind, ())
            return lambda struct: self._node(struct, lambda its: [_STRUCT, number, its])
        names = _fixed_attributes(kind)
        if names is None:
            return lambda its: self._node(its, self._open_object)
        number = self._layout(kind, names)
        return lambda its: self._node(its, lambda its: [_OBJECT, number, *self._attributes(its, names)])

    def _open_object(self, thing: object) -> list[Any]:
        """An object whose attributes are in a dictionary."""
        slots, its = _slots(type(thing)), tuple(vars(thing))
        key = type(thing), its
        number = self._layouts_of.get(key)
        if number is None:
            number = self._layouts_of[key] = self._layout(type(thing), (*slots, *its))
        return [_OBJECT, number, *self._attributes(thing, (*slots, *its))]

    def _node(self, thing: object, captured: Callable[[Any], list[Any]]) -> Any:
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self.nodes)
            node: list[Any] = []
            self.nodes.append(node)
            self._alive.append(thing)
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise SnapshotError("objects refer to each other in too long a chain")
            node += captured(thing)
            self._depth -= 1
        return [_NODE, number]

    def _attributes(self, thing: object, names: tuple[str, ...]) -> list[Any]:
        simple, value = _SIMPLE, self.value
        try:
            several = [getattr(thing, name) for name in names]
        except AttributeError:
            return [value(getattr(thing, name)) if hasattr(thing, name) else [_ABSENT] for name in names]
        return [one if type(one) in simple else value(one) for one in several]

    def _list(self, things: list[Any]) -> list[Any]:
        return [_PLAIN_LIST, list(things)] if _are_plain(things) else [_LIST, *self._each(things)]

    def _dict(self, pairs: dict[Any, Any]) -> list[Any]:
        keys, values = list(pairs), list(pairs.values())
        if _are_plain(keys) and set(map(type, values)) <= _SCALARS:
            return [_PLAIN_DICT, keys, values]
        return [_DICT, *self._each(_flat(pairs))]

    def _each(self, things: Iterable[object]) -> list[Any]:
        simple, value = _SIMPLE, self.value
        return [thing if type(thing) in simple else value(thing) for thing in things]

    def _layout(self, kind: type, names: tuple[str, ...]) -> int:
        self.layouts.append((f"{kind.__module__}:{kind.__qualname__}", list(names)))
        return len(self.layouts) - 1


def encodable(part: SnapshotPart) -> SnapshotPart:
    """The part as it can be encoded: without integers that are too big for that."""
    for node in part.nodes:
        if node[0] == _PLAIN_DICT and not _are_plain(node[2]):
            numbers = {value: number for number, value in enumerate(dict.fromkeys(node[2]))}
            distinct = [_integer(value) if type(value) is int else value for value in numbers]
            node[:] = [_SHARED_DICT, node[1], [numbers[value] for value in node[2]], distinct]
    return part


class _Restore:
    def __init__(self, nodes: list[list[Any]], layouts: Sequence[tuple[str, list[str]]], class_of: ClassOf) -> None:
        self._nodes = nodes
        self._names = [names for _, names in layouts]
        self._classes = [_known_class(name, class_of) for name, _ in layouts]
        self._fresh: dict[int, object] = {}
        """Objects that exist already, by the nodes that they are filled from."""
        self._done: dict[int, Any] = {}
        self._depth = 0

    def into(self, fresh: object) -> None:
        if not self._nodes:
            raise SnapshotError("the snapshot is empty")
        self._match(0, fresh)
        if 0 not in self._fresh:
            raise SnapshotError(f"this is no snapshot of a {type(fresh).__name__}")
        self._value([_NODE, 0], None)

    def _match(self, number: int, fresh: object) -> None:
        """Find the nodes of the objects that `fresh` refers to by attributes."""
        node = self._nodes[number]
        if number in self._fresh or node[0] != _OBJECT or type(fresh) is not self._classes[node[1]]:
            return
        self._fresh[number] = fresh
        for name, value in zip(self._names[node[1]], node[2:], strict=True):
            if type(value) is list and value[0] == _NODE:
                self._match(value[1], getattr(fresh, name, None))

    def _value(self, value: Any, kept: object) -> Any:
        """`kept`: what the fresh object has in this place."""
        if type(value) is not list:
            return value
        mark = value[0]
        if mark == _NODE:
            return self._node(value[1])
        if mark == _BIG:
            return int.from_bytes(value[1], "little", signed=True)
        if mark == _ENUM:
            return self._class(value[1], Enum)(value[2])
        if mark == _TUPLE:
            return tuple(self._each(value[1:]))
        if mark == _FROZEN:
            return frozenset(self._each(value[1:]))
        if mark == _NAMED:
            return self._class(value[1], tuple)(*self._each(value[2:]))
        if mark == _KEPT and kept is not None:
            return kept
        raise SnapshotError(f"a value has the mark {mark}, which is not expected there")

    def _node(self, number: int) -> Any:
        if number in self._done:
            return self._done[number]
        if number < 0 or self._depth > MAX_DEPTH:
            raise SnapshotError("objects refer to each other in too long a chain")
        self._depth += 1
        made = self._make(number, self._nodes[number])
        self._depth -= 1
        return made

    def _make(self, number: int, node: list[Any]) -> Any:
        kind, rest = node[0], node[1:]
        if kind == _OBJECT:
            return self._object(number, rest[0], rest[1:])
        if kind == _STRUCT:
            self._done[number] = msgspec.convert(rest[1], self._class(rest[0], msgspec.Struct))
            return self._done[number]
        made: Any = _empty(kind, rest)
        self._done[number] = made
        match kind:
            case 2:
                made.extend(self._each(rest))
            case 3 | 6 | 10:
                values = self._each(rest)
                made.update(zip(values, values, strict=True))
            case 4:
                made.update(self._each(rest))
            case 5:
                made.extend(self._each(rest[1:]))
            case 9:
                shared = list(self._each(rest[2]))
                made.update(zip(rest[0], [shared[which] for which in rest[1]], strict=True))
        return made

    def _object(self, number: int, layout: int, values: list[Any]) -> object:
        kind, fresh = self._class(layout, object), self._fresh.get(number)
        made = fresh if fresh is not None else object.__new__(kind)
        self._done[number] = made
        for name, value in zip(self._names[layout], values, strict=True):
            if value != [_ABSENT]:
                kept = getattr(fresh, name, None) if fresh is not None else None
                object.__setattr__(made, name, self._value(value, kept))
        return made

    def _class(self, layout: int, base: type) -> Any:
        found = self._classes[layout]
        if not issubclass(found, base):
            raise SnapshotError(f"{found} is named where a {base.__name__} is expected")
        return found

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        return (self._value(value, None) for value in values)


def _parts(nodes: list[list[Any]]) -> Iterator[SnapshotPart]:
    part: list[list[Any]] = []
    num_values = 0
    for node in nodes:
        part.append(node)
        num_values += len(node[1]) if node[0] in _PLAIN else len(node)
        if num_values >= PART_VALUES:
            yield SnapshotPart(part, None)
            part, num_values = [], 0
    yield SnapshotPart(part, None)


def _known_class(name: str, class_of: ClassOf) -> type:
    found = class_of(name)
    if found is None:
        raise SnapshotError(f"the snapshot names {name[:200]!r}, which this version of the Scheduler does not have")
    return found


def _empty(kind: int, rest: list[Any]) -> Any:
    match kind:
        case 2:
            return []
        case 3 | 9:
            return {}
        case 4:
            return set()
        case 5:
            return deque(maxlen=rest[0])
        case 6:
            return OrderedDict()
        case 10:
            return Counter()
        case 7:
            return list(rest[0])
        case 8:
            return dict(zip(rest[0], rest[1], strict=True))
    raise SnapshotError(f"a node has the kind {kind}, which is unknown")


def _flat(pairs: dict[Any, Any]) -> Iterator[object]:
    for key, value in pairs.items():
        yield key
        yield value


def _are_plain(values: list[Any]) -> bool:
    kinds = set(map(type, values))
    if not kinds <= _SCALARS:
        return False
    if int not in kinds:
        return True
    numbers = values if len(kinds) == 1 else [value for value in values if type(value) is int]
    return max(map(int.bit_length, numbers)) <= _WORD_BITS


def _integer(number: int) -> Any:
    if number.bit_length() <= _WORD_BITS:
        return number
    return [_BIG, number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)]


def _is_function(kind: type) -> bool:
    """Whether the callable things of a class are functions. A compiled function within another one has a class of its
    own, in the module of the function.
    """
    return not kind.__module__.startswith(PACKAGES) or kind.__name__.startswith(_COMPILED_FUNCTION)


def _fixed_attributes(kind: type) -> tuple[str, ...] | None:
    """The attributes that all objects of a class have. None if objects may have others."""
    compiled: tuple[str, ...] | None = getattr(kind, "__mypyc_attrs__", None)
    if compiled is not None:
        return compiled
    return None if getattr(kind, "__dictoffset__", 0) else _slots(kind)


def _slots(kind: type) -> tuple[str, ...]:
    return tuple([name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())])
