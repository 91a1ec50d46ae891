"""The meaning of names and expressions in the source of a function.

Lives here: the names that a function binds, and `Names`, which resolves an expression to the object that it
will have when the function runs, as far as that can be known. May not: rules (rules.py), findings
(hazards.py), running any code of users: attributes are read from `__dict__`, so that no property is asked.
Design: an expression that cannot be resolved is no hazard. So a gap costs a finding, and gives no false one.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import collections
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, Final, Literal, TypeAlias

from pyengine.core.definitions.function_source import FunctionNode, Source

Kind: TypeAlias = Literal["set", "path", "loop", "mutable"]

UNKNOWN: Final = object()
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
_SET_METHODS = frozenset({"copy", "difference", "intersection", "symmetric_difference", "union"})
_SAME_PATH = frozenset(
    {
        "absolute",
        "cwd",
        "expanduser",
        "home",
        "joinpath",
        "resolve",
        "relative_to",
        "with_name",
        "with_stem",
        "with_suffix",
    }
)
_MUTABLE = (list, dict, bytearray, collections.deque)
_LOOPS = (asyncio.get_running_loop, asyncio.get_event_loop, asyncio.new_event_loop)
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of an expression.

    Args:
        value: the object, or UNKNOWN.
        name: its full name, such as `time.time`; `<path>.read_text` for the method of a path, `<loop>.stop`
            for that of an event loop.
        kind: a property of the object that its expression shows.
        is_global: it is a variable of the module, or a part of one.
        node: it is this function, which the module defines further below.
    """

    value: Any = UNKNOWN
    name: str | None = None
    kind: Kind | None = None
    is_global: bool = False
    node: FunctionNode | None = None


_NOTHING = Meaning()
_Bound: TypeAlias = ast.AST | str | None


class _Scope:
    """The names that a function binds.

    Attributes:
        bound: by name, how it is bound: an expression, a parameter, the full name of an import; else None.
        globals: names that it declares with `global`.
        nonlocals: names that it declares with `nonlocal`.
    """

    def __init__(self, node: FunctionNode | ast.Lambda) -> None:
        self.bound: dict[str, list[_Bound]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._bind(each.arg, each)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                self._bind(rest.arg, None)
        for inner in _own_nodes(node.body if isinstance(node.body, list) else [node.body]):
            self._add(inner)

    def give_up_first(self, node: FunctionNode | ast.Lambda) -> str | None:
        """Return the name of the first parameter, as not bound here, unless it is bound again."""
        first = next((each.arg for each in (*node.args.posonlyargs, *node.args.args)), None)
        return first if first is not None and len(self.bound.pop(first)) == 1 else None

    def _bind(self, name: str, value: _Bound) -> None:
        self.bound.setdefault(name, []).append(value)

    def _add(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(target, value)
            case ast.AnnAssign(target=target, value=value):
                self._bind_target(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind_target(target, value)
            case ast.AugAssign(target=ast.Name(id=name), op=op):
                if not isinstance(op, _SET_OPERATORS):
                    self._bind(name, None)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind_target(node.target, None)
            case ast.withitem(optional_vars=ast.expr() as target):
                self._bind_target(target, None)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                self._bind(name, None)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                self._bind(name, None)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._bind(name, None)
            case ast.Global(names=names):
                self.globals.update(names)
            case ast.Nonlocal(names=names):
                self.nonlocals.update(names)
            case ast.Import():
                for each in node.names:
                    first = each.name.partition(".")[0]
                    self._bind(each.asname or first, each.name if each.asname else first)
            case ast.ImportFrom():
                for each in node.names:
                    full = f"{node.module}.{each.name}" if node.module and not node.level else None
                    self._bind(each.asname or each.name, full)

    def _bind_target(self, target: ast.expr, value: _Bound) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value)
        elif isinstance(target, ast.Starred):
            self._bind_target(target.value, None)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind_target(each, None)


def _own_nodes(body: list[Any]) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those inside its inner functions and classes."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _INNER):
            todo.extend(ast.iter_child_nodes(node))


class Names:
    """Resolves the expressions of one function.

    Args:
        source: its source.
        node: the function there.
        module: the variables of its module.
        closure: what it sees of the functions around it.
        owner: the object whose method it is, if it is known.
    """

    def __init__(
        self,
        source: Source,
        node: FunctionNode | ast.Lambda,
        module: dict[str, Any],
        closure: dict[str, Any],
        owner: Any = UNKNOWN,
    ) -> None:
        self._source = source
        self._module = module
        self._closure = closure
        self._scopes = [_Scope(node)]
        self._owner = owner
        self._self = None if owner is UNKNOWN else self._scopes[0].give_up_first(node)
        self._known: dict[ast.AST | None, Meaning] = {}
        self._resolving: set[_Bound] = set()

    def enter(self, node: FunctionNode | ast.Lambda) -> None:
        """Go into an inner function."""
        self._scopes.append(_Scope(node))

    def leave(self) -> None:
        """Go out of it."""
        self._scopes.pop()

    def declared(self, name: str) -> str | None:
        """Return "the global" if the function declares a name so, "the nonlocal" if it is one of the code
        around the workflow, else None.
        """
        inner = self._scopes[-1]
        if name in inner.globals:
            return "the global"
        own = any(name in scope.bound.keys() - scope.nonlocals for scope in self._scopes)
        return "the nonlocal" if name in inner.nonlocals and not own else None

    def is_owner(self, name: str) -> bool:
        """Whether a name is that of the object whose method the function is."""
        return name == self._self and not any(name in scope.bound for scope in self._scopes)

    def resolve(self, node: ast.AST | None) -> Meaning:
        """Return the meaning of an expression, as far as that can be known."""
        if node in self._known:
            return self._known[node]
        if node in self._resolving:
            return _NOTHING
        self._resolving.add(node)
        found = self._known[node] = self._resolve(node)
        self._resolving.discard(node)
        return found

    def _resolve(self, node: ast.AST | None) -> Meaning:
        match node:
            case ast.Name():
                return self._name(node.id)
            case ast.Attribute():
                return _attribute(self.resolve(node.value), node.attr)
            case ast.Call():
                return self._result(node)
            case ast.NamedExpr():
                return self.resolve(node.value)
            case ast.arg():
                annotated = self.resolve(node.annotation).value
                return Meaning(kind="path") if _is_path(annotated) else _NOTHING
            case ast.Set(elts=members):
                # numbers have the same order everywhere
                return _NOTHING if all(map(_is_number, members)) else Meaning(kind="set")
            case ast.SetComp():
                return Meaning(kind="set")
            case ast.List() | ast.Dict() | ast.ListComp() | ast.DictComp():
                return Meaning(kind="mutable")
            case ast.BinOp(left=left, op=ast.Div()):
                return Meaning(kind="path") if self.resolve(left).kind == "path" else _NOTHING
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
                of_set = "set" in (self.resolve(left).kind, self.resolve(right).kind)
                return Meaning(kind="set") if of_set else _NOTHING
        return _NOTHING

    def _name(self, name: str) -> Meaning:
        for scope in reversed(self._scopes):
            if name in scope.globals:
                break
            if name in scope.bound:
                return self._local(scope.bound[name])
        else:
            if name == self._self:
                return _of_object(self._owner, is_global=True)
            if name in self._closure:
                return _of_object(self._closure[name])
        if name in self._module:
            return _of_object(self._module[name], is_global=True)
        if hasattr(builtins, name):
            return Meaning(value=getattr(builtins, name), name=f"builtins.{name}")
        below = self._source.top.get(name)
        if isinstance(below, FunctionNode):
            return Meaning(node=below)
        return _NOTHING if below is None else Meaning(kind=self.resolve(below).kind, is_global=True)

    def _local(self, values: list[_Bound]) -> Meaning:
        """Return the meaning of a local variable: that of its value, or what several values share."""
        # x = x.parent shows nothing that the other values of x do not
        others = [one for one in values if one not in self._resolving]
        found = [_imported(one) if isinstance(one, str) else self.resolve(one) for one in others]
        if len(found) == 1:
            return found[0]
        kinds = {one.kind for one in found}
        return Meaning(kind=kinds.pop()) if len(kinds) == 1 else _NOTHING

    def _result(self, node: ast.Call) -> Meaning:
        """Return the meaning of what a call returns."""
        called = self.resolve(node.func)
        value, name = called.value, called.name or ""
        if value is set or value is frozenset:
            return Meaning(kind="set")
        if value is list or value is dict or value is collections.deque or value is collections.defaultdict:
            return Meaning(kind="mutable")
        if _is_path(value) or name in ("pathlib.Path", "pathlib.PurePath"):
            return Meaning(kind="path")
        if any(value is one for one in _LOOPS):
            return Meaning(kind="loop")
        head, _, last = name.rpartition(".")
        if head in ("<path>", "pathlib.Path") and last in _SAME_PATH:
            return Meaning(kind="path")
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
            of = self.resolve(node.func.value).kind
            return Meaning(kind="set") if of == "set" else _NOTHING
        return _NOTHING


def _attribute(base: Meaning, attribute: str) -> Meaning:
    """Return the meaning of an attribute."""
    value = base.value
    if base.kind == "path":
        return Meaning(kind="path") if attribute == "parent" else Meaning(name=f"<path>.{attribute}")
    if base.kind == "loop":
        return Meaning(name=f"<loop>.{attribute}")
    if value is UNKNOWN:
        return _NOTHING if base.name is None else Meaning(name=f"{base.name}.{attribute}")
    if issubclass(type(value), ModuleType):
        found = vars(value).get(attribute, UNKNOWN)
        return _of_object(found, f"{value.__name__}.{attribute}", is_global=True)
    if _is_class(value):
        owner = next((one for one in value.__mro__ if attribute in vars(one)), value)
        found = vars(owner).get(attribute, UNKNOWN)
        name = f"{owner.__module__}.{owner.__qualname__}.{attribute}"
        return _of_object(found, name, is_global=base.is_global)
    try:
        found = object.__getattribute__(value, "__dict__").get(attribute, UNKNOWN)
    except AttributeError:
        found = UNKNOWN
    return _of_object(found, is_global=base.is_global)


def _of_object(value: Any, name: str | None = None, *, is_global: bool = False) -> Meaning:
    kind: Kind | None = None
    cls = type(value)
    if issubclass(cls, PurePath):
        kind = "path"
    elif issubclass(cls, set | frozenset):
        kind = "set"
    elif issubclass(cls, _MUTABLE):
        kind = "mutable"
    return Meaning(value=value, name=name, kind=kind, is_global=is_global)


def _imported(name: str) -> Meaning:
    """Return the meaning of a name that the function itself imports; no module is loaded for that."""
    module = sys.modules.get(name)
    if module is not None:
        return Meaning(value=module, name=name)
    head, _, last = name.rpartition(".")
    module = sys.modules.get(head)
    return Meaning(name=name) if module is None else _attribute(Meaning(value=module), last)


def _is_class(value: Any) -> bool:
    # isinstance would ask a lazy object for its __class__, which may load anything
    return issubclass(type(value), type)


def _is_path(value: Any) -> bool:
    return _is_class(value) and issubclass(value, PurePath)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return what a function sees of the functions around it; UNKNOWN for what is bound later."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = UNKNOWN
    return found
