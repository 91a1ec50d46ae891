"""The signals that the code of a workflow receives.

Lives here: `received_signals`, which finds them in the source of a workflow and of the functions that it
names, in any module of the user. May not: the meaning of names (names.py), running any code of
users. Design: a signal that is missing here is refused although the code receives it, and one too many only
costs a finding. So every signal that the code names counts. The set is open, and no name is refused, if the
code receives a name that cannot be seen or awaits a call that cannot be followed. The search runs when a
worker starts, because then all modules are complete.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.function_source import FunctionNode, source_of
from pyengine.core.definitions.signals import ReceivedSignals, Signal
from pyengine.features.checks.names import UNKNOWN, Names, closure_of

_FUNCTIONS_MAX: Final = 1000
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
# calls whose arguments are awaited
_COMBINATORS: Final = frozenset(
    {
        *("as_completed", "create_task", "ensure_future", "first", "gather", "shield", "submit", "wait"),
        "wait_for",
    }
)
# awaitable methods of the objects that ctx and asyncio return
_METHODS_OF_HANDLES: Final = frozenset(
    {
        *("acquire", "all", "cancel", "execute", "executemany", "fetch", "fetchrow", "fetchval", "get"),
        *("join", "next", "outcome", "put", "reject", "resolve", "result", "retry", "savepoint", "signal"),
        *("start", "wait"),
    }
)
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def received_signals(workflow: WorkflowDef) -> ReceivedSignals:
    """Return the signals that a workflow declares or its code names."""
    search = _Search(workflow.fn)
    search.run()
    for signal in workflow.signals or ():
        search.add(signal.name, signal.annotation)
    return ReceivedSignals(
        types=dict(sorted(search.types.items())),
        any=workflow.any_signal or (workflow.signals is None and search.is_open),
    )


class _Search:
    """The search in the code of one workflow.

    Attributes:
        types: what was found, by name.
        is_open: the code may receive other names.
    """

    def __init__(self, function: Any) -> None:
        self.types: dict[str, Any] = {}
        self.is_open = False
        self._package = str(getattr(function, "__module__", "")).partition(".")[0]
        self._todo: list[FunctionType] = []
        self._known: set[FunctionType | type] = set()
        self.follow(function)

    def run(self) -> None:
        """Go through the code."""
        while self._todo:
            function = self._todo.pop()
            if len(self._known) > _FUNCTIONS_MAX:
                self.is_open = True
                return
            found = source_of(function)
            if found is not None:
                source, node = found
                names = Names(source, node, function.__globals__, closure_of(function))
                _Walk(self, names, node).run()
            elif "receive" in _names_of(function.__code__):
                self.is_open = True

    def add(self, name: str, annotation: Any) -> None:
        """Add a signal; one of two types is of any."""
        known = self.types.setdefault(name, annotation)
        if known != annotation:
            self.types[name] = Any

    def follow(self, value: Any) -> None:
        """Take an object that the code names: a signal, a function or class to go through, or neither."""
        # isinstance would ask a lazy object for its class, which may load anything
        cls = type(value)
        if cls is partial:
            self.follow(value.func)
        elif cls is MethodType:
            self.follow(value.__func__)
        elif cls is FunctionType:
            self._follow_function(value)
        elif issubclass(cls, Signal):
            self.add(value.name, value.annotation)
        elif cls in (list, tuple, set, frozenset, dict):
            for one in value.values() if cls is dict else value:
                if issubclass(type(one), Signal):
                    self.follow(one)
        else:
            self._follow_class(value if issubclass(cls, type) else cls)

    def _follow_function(self, function: FunctionType) -> None:
        # two functions of one code may see other signals around them
        if function in self._known or not self._is_user(function):
            return
        self._known.add(function)
        self._todo.append(function)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.follow(wrapped)

    def _follow_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if base in self._known or not self._is_user(base):
                continue
            self._known.add(base)
            for member in list(vars(base).values()):
                function = getattr(member, "fget" if type(member) is property else "__func__", member)
                if type(function) is FunctionType:
                    self.follow(function)

    def _is_user(self, value: Any) -> bool:
        """Whether code of the user defined a function or class: not the standard library, not a package."""
        package = str(getattr(value, "__module__", "")).partition(".")[0]
        if package == self._package:
            return True
        if package in sys.stdlib_module_names or package in ("", "pyengine"):
            return False
        file = getattr(sys.modules.get(package), "__file__", None)
        return file is None or _INSTALLED.isdisjoint(PurePath(file).parts)


class _Walk:
    """One walk through the source of a function."""

    def __init__(self, search: _Search, names: Names, node: FunctionNode) -> None:
        self._search = search
        self._names = names
        self._node = node
        self._inner = {one.name for one in ast.walk(node) if isinstance(one, FunctionNode)}
        self._receives: set[ast.AST] = set()

    def run(self) -> None:
        """Go through the body of the function."""
        for statement in self._node.body:
            self._visit(statement)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._names.enter(node)
                for statement in node.body if isinstance(node.body, list) else [node.body]:
                    self._visit(statement)
                self._names.leave()
                return
            case ast.AnnAssign(value=value):
                # the annotation is not evaluated
                if value is not None:
                    self._visit(value)
                return
            case ast.Call():
                self._check_call(node)
            case ast.Await(value=value) | ast.AsyncFor(iter=value):
                self._check_awaited([value])
            case ast.AsyncWith(items=items):
                self._check_awaited(item.context_expr for item in items)
            case ast.Name() | ast.Attribute():
                self._check_reference(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _check_reference(self, node: ast.Name | ast.Attribute) -> None:
        value = self._names.resolve(node).value
        if value is not UNKNOWN:
            self._search.follow(value)
        elif isinstance(node, ast.Attribute) and node.attr == "receive" and node not in self._receives:
            # receive = ctx.receive
            self._search.is_open = True

    def _check_call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "receive" and isinstance(node.func, ast.Attribute) and node.args:
            self._receives.add(node.func)
            self._check_receive(node)
        elif called in _COMBINATORS:
            self._check_awaited(_awaited_arguments(node))

    def _check_receive(self, node: ast.Call) -> None:
        """Add the signal of a receive."""
        signal = self._signal_of(node.args[0])
        if isinstance(signal, Signal):
            self._search.add(signal.name, signal.annotation)
        elif isinstance(signal, str):
            named = [one.value for one in node.keywords if one.arg == "type"]
            self._search.add(signal, self._type_of([*node.args[1:], *named]))
        else:
            self._search.is_open = True

    def _signal_of(self, node: ast.expr) -> Any:
        """Return the signal of an expression, or its name; None if neither can be seen."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Call(func=ast.Subscript(value=cls, slice=given), args=[ast.Constant(value=str(name))]):
                types = [given]
            case ast.Call(func=cls, args=[ast.Constant(value=str(name)), *types]):
                pass
            case _:
                value = self._names.resolve(node).value
                return value if issubclass(type(value), Signal | str) else None
        return Signal(name, self._type_of(types)) if self._names.resolve(cls).value is Signal else None

    def _type_of(self, nodes: list[ast.expr]) -> Any:
        value = self._names.resolve(nodes[0]).value if nodes else UNKNOWN
        return Any if value is UNKNOWN else value

    def _check_awaited(self, nodes: Iterable[ast.expr]) -> None:
        """Check calls whose results are awaited: one that cannot be followed may receive anything."""
        for node in nodes:
            if isinstance(node, ast.Call) and not self._is_followed(node.func):
                self._search.is_open = True

    def _is_followed(self, called: ast.expr) -> bool:
        meaning = self._names.resolve(called)
        if meaning.value is not UNKNOWN or meaning.node is not None:
            return True
        if isinstance(called, ast.Name):
            return called.id in self._inner
        if not isinstance(called, ast.Attribute):
            return False
        owner = self._names.resolve(called.value).value
        if owner is UNKNOWN:
            return called.attr in _METHODS_OF_HANDLES
        return any(called.attr in vars(base) for base in type(owner).__mro__)


def _awaited_arguments(node: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call; of a comprehension its elements."""
    for given in node.args:
        inner = given.value if isinstance(given, ast.Starred) else given
        yield inner.elt if isinstance(inner, _COMPREHENSIONS) else inner


def _names_of(code: CodeType) -> Iterator[str]:
    """Yield the names that a code object and those inside use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)
