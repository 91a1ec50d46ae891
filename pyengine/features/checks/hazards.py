"""The places in the code of a workflow that a replay cannot repeat.

Lives here: `hazards_of`, the walk through the source of a function and of the plain functions of its module
that it calls. May not: the table of such calls (rules.py), the meaning of names (names.py), warnings
(warning.py). Steps, memos and child workflows are not followed: what happens in them is recorded. Functions
of other modules are not followed either, nor what the functions that are followed call in turn.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, TypeAlias

from pyengine.core.definitions.code_check import Hazard
from pyengine.core.definitions.definition import StepDef
from pyengine.core.definitions.function_source import FunctionNode, Source, lambda_source_of, source_of
from pyengine.core.loop.restrictions import STEP
from pyengine.features.checks import rules
from pyengine.features.checks.default_factories import factories_of
from pyengine.features.checks.lost_changes import changed_by, changed_variable
from pyengine.features.checks.names import UNKNOWN, Meaning, Names, closure_of

_Comprehension: TypeAlias = ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp
_Callee: TypeAlias = FunctionType | MethodType | FunctionNode
_SHOWN_MAX: Final = 60
_IN_ANY_ORDER = frozenset({"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"})
_IN_THEIR_ORDER = frozenset({"enumerate", "filter", "iter", "list", "map", "reversed", "tuple", "zip"})
_METHODS_IN_THEIR_ORDER = frozenset({"extend", "fromkeys", "join"})


def hazards_of(function: Callable[..., Any]) -> list[Hazard]:
    """Return the hazards of a function, in the order of their lines; none if it has no source."""
    plain, owner = _split(function)
    try:
        return _hazards_of(plain, owner) if isinstance(plain, FunctionType) else []
    except RecursionError:
        # an expression that is nested too deep for a walk is no reason to refuse a workflow
        return []


def _split(function: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """Return a function, and the object whose method it is, or UNKNOWN."""
    return (function.__func__, function.__self__) if type(function) is MethodType else (function, UNKNOWN)


def _hazards_of(function: FunctionType, owner: Any) -> list[Hazard]:
    found = source_of(function)
    if found is None:
        return []
    source, node = found
    walk = _Walk(source, node, function.__globals__, closure_of(function), owner)
    walk.run()
    walk.check_lost_changes()
    hazards = walk.hazards
    for name, callee in walk.callees.items():
        for one in _of_callee(callee, source, function):
            hazards.append(replace(one, action=f"calls {name}(), which {one.action}"))
    hazards.sort(key=operator.attrgetter("file", "line"))
    return hazards


def _of_factory(factory: Any) -> list[Hazard]:
    """Return the hazards of what makes a value of a field, without its place, which is in another code."""
    meaning = Meaning(value=factory)
    instead = _instead_of(meaning, 0)
    if instead is not None:
        name = rules.full_name(factory)
        return [Hazard(file="", line=0, action=f"calls {name}()", instead=instead)]
    if type(factory) is not FunctionType:
        return []
    source, node = source_of(factory) or lambda_source_of(factory) or (None, None)
    if source is None or node is None:
        return []
    return _Walk(source, node, factory.__globals__, closure_of(factory)).run()


def _of_callee(callee: _Callee, source: Source, caller: FunctionType) -> list[Hazard]:
    """Return the hazards of a function that a workflow calls."""
    if isinstance(callee, FunctionNode):
        return _Walk(source, callee, caller.__globals__, {}).run()
    plain, owner = _split(callee)
    assert isinstance(plain, FunctionType)
    found = source_of(plain)
    return [] if found is None else _Walk(*found, plain.__globals__, closure_of(plain), owner).run()


class _Walk:
    """One walk through the source of a function.

    Attributes:
        callees: plain functions of the same module that it calls, or hands to a call; methods of its object.
        steps: steps that it calls, by name.
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
        self._node = node
        self._module = module
        self._owner = owner
        self._names = Names(source, node, module, closure, owner)
        self._hazards: dict[tuple[int, str], Hazard] = {}
        self._orderless: set[ast.AST] = set()
        self._reads: dict[int, ast.Name] = {}
        self._changed: set[ast.AST] = set()
        self._live = 0
        self.callees: dict[str, _Callee] = {}
        self.steps: dict[str, FunctionType] = {}

    @property
    def hazards(self) -> list[Hazard]:
        """All hazards that were found so far."""
        return list(self._hazards.values())

    def run(self) -> list[Hazard]:
        """Return what was found in the body of the function."""
        for statement in _body(self._node):
            self._visit(statement)
        return self.hazards

    def check_lost_changes(self) -> None:
        """Check what the code reads of objects that its steps change."""
        for name, step in self.steps.items():
            for changed in changed_by(step):
                read = self._reads.get(id(changed))
                if read is not None:
                    self._add(read, f"reads {read.id}, which step {name} changes", rules.RETURNED)

    def _add(self, node: ast.expr | ast.stmt, action: str, instead: str) -> None:
        if not self._source.is_silenced(node):
            hazard = Hazard(file=self._source.file, line=node.lineno, action=action, instead=instead)
            self._hazards.setdefault((node.lineno, instead), hazard)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._visit_inner(node)
                return
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Attribute(attr="replaying"))):
                # `if not ctx.replaying:`
                self._live += 1
                for statement in node.body:
                    self._visit(statement)
                self._live -= 1
                for statement in node.orelse:
                    self._visit(statement)
                return
            case ast.AnnAssign(target=target, value=value):
                # the annotation is not evaluated
                for part in filter(None, (target, value)):
                    self._visit(part)
                return
            case ast.Call():
                self._check_call(node)
            case ast.Name():
                self._check_read(node)
                self._remember_read(node)
            case ast.Attribute() | ast.Subscript():
                self._check_read(node)
                self._check_store(node)
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                self._check_declared(node, targets)
            case ast.AugAssign(target=target):
                self._check_declared(node, [target])
            case ast.For() | ast.AsyncFor():
                self._check_iteration(node.iter)
            case ast.Starred(value=value, ctx=ast.Load()):
                self._check_iteration(value)
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.SetComp():
                self._check_comprehension(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _visit_inner(self, node: FunctionNode | ast.Lambda) -> None:
        """Go through a function inside the function; its annotations are no code."""
        for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
            self._visit(default)
        self._names.enter(node)
        for statement in _body(node):
            self._visit(statement)
        self._names.leave()

    # -- calls

    def _check_call(self, node: ast.Call) -> None:
        called = self._names.resolve(node.func)
        instead = self._instead_of_call(node, called)
        if instead is not None and not (self._live and instead == rules.LOG):
            self._add(node, f"calls {_shown(node.func, called)}", instead)
            return
        self._check_fields(node, called)
        self._check_change(node)
        self._check_order(node, called)
        self._follow(node, called)
        for given in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._check_reference(node, given)

    def _check_fields(self, node: ast.Call, called: Meaning) -> None:
        """Check what makes the values of the fields of an object that are not given."""
        if _count(node) is None or not issubclass(type(called.value), type):
            return
        given = {keyword.arg for keyword in node.keywords}
        for name, factory in factories_of(called.value, len(node.args), given):
            for one in _of_factory(factory):
                self._add(node, f"makes {_text(node.func)}, whose field {name!r} {one.action}", one.instead)

    def _instead_of_call(self, node: ast.Call, called: Meaning) -> str | None:
        """Return the alternative to a call, or None if a replay can repeat it."""
        head, _, last = (called.name or "").rpartition(".")
        if head == "<path>":
            return STEP if last in rules.PATH_METHODS else None
        if head == "<loop>":
            return rules.instead_of_loop_method(last)
        if called.value is id:
            return rules.IDENTITIES
        if called.value is hash:
            return rules.HASHES
        instead = _instead_of(called, _count(node))
        if instead is None and isinstance(node.func, ast.Attribute):
            receiver = type(self._names.resolve(node.func.value).value)
            return None if issubclass(receiver, type) else rules.instead_of_type(receiver)
        return instead

    def _check_reference(self, call: ast.Call, given: ast.expr) -> None:
        """Check a function that is handed to a call, such as the key of `sorted`."""
        if isinstance(given, ast.Name | ast.Attribute):
            meaning = self._names.resolve(given)
            instead = None if issubclass(type(meaning.value), type) else _instead_of(meaning, None)
            if instead is not None:
                self._add(given, f"hands on {_shown(given, meaning)}", instead)
            self._follow(call, meaning)

    def _follow(self, node: ast.Call, called: Meaning) -> None:
        """Keep a plain function of the same module, to go through it later."""
        if self._source.is_silenced(node):
            return
        step = _step_of(called.value)
        if step is not None and type(step.fn) is FunctionType:
            self.steps.setdefault(step.name, step.fn)
        elif called.node is not None:
            self.callees.setdefault(called.node.name, called.node)
        elif type(called.value) is FunctionType:
            function = inspect.unwrap(called.value)
            if type(function) is FunctionType and function.__globals__ is self._module:
                self.callees.setdefault(function.__name__, function)
        else:
            self._follow_method(node.func)

    def _follow_method(self, called: ast.expr) -> None:
        """Keep a method of the object whose method the workflow is."""
        match called:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if self._names.is_owner(owner):
                method = inspect.getattr_static(type(self._owner), name, None)
                if type(method) is FunctionType and method.__globals__ is self._module:
                    self.callees.setdefault(f"{owner}.{name}", MethodType(method, self._owner))

    def _check_read(self, node: ast.expr) -> None:
        """Check an object that code need not call."""
        name = rules.attribute_name(self._names.resolve(node).value)
        if name is not None:
            self._add(node, f"uses {name}", rules.ATTRIBUTES[name])

    def _remember_read(self, node: ast.Name) -> None:
        """Keep a variable whose object may be changed elsewhere, unless it is only changed here."""
        if node in self._changed:
            return
        meaning = self._names.resolve(node)
        if meaning.kind in ("mutable", "set") and meaning.value is not UNKNOWN:
            self._reads.setdefault(id(meaning.value), node)

    # -- globals that are changed

    def _check_store(self, node: ast.Attribute | ast.Subscript) -> None:
        """Check an attribute or an item that is set or deleted."""
        root = changed_variable(node)
        if root is not None and self._names.resolve(root).is_global:
            changed = _text(node) if self._names.is_owner(root.id) else f"the global {root.id}"
            self._add(node, f"changes {changed}", rules.OUTER)

    def _check_declared(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        """Check the names that a statement binds or deletes."""
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and (where := self._names.declared(each.id)):
                    self._add(node, f"changes {where} {each.id}", rules.OUTER)

    def _check_change(self, node: ast.Call) -> None:
        """Check a method that changes a global, and `next` of a global iterator."""
        match node:
            case ast.Call(func=ast.Attribute(value=changed, attr=method)) if method in rules.MUTATING_METHODS:
                self._changed.add(changed)
                meaning = self._names.resolve(changed)
                changes = meaning.is_global and meaning.kind in ("mutable", "set")
            case ast.Call(func=ast.Name(id="next"), args=[changed, *_]):
                changes = self._names.resolve(changed).is_global
            case _:
                return
        if changes:
            root = changed_variable(node)
            what = "" if root is not None and self._names.is_owner(root.id) else "the global "
            self._add(node, f"changes {what}{_text(changed)}", rules.OUTER)

    # -- the order of sets

    def _check_order(self, node: ast.Call, called: Meaning) -> None:
        """Check what a call takes in the order of a set."""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = (called.name or "").removeprefix("builtins.")
        if name in _IN_ANY_ORDER:
            self._orderless.update(node.args)
        if name in _IN_THEIR_ORDER or method in _METHODS_IN_THEIR_ORDER:
            for given in node.args:
                self._check_iteration(given)
        if method == "pop" and not node.args and isinstance(node.func, ast.Attribute):
            self._check_iteration(node.func.value)

    def _check_comprehension(self, node: _Comprehension) -> None:
        waits = any(isinstance(each, ast.Await) for each in ast.walk(node))
        if waits or not (isinstance(node, ast.SetComp) or node in self._orderless):
            for each in node.generators:
                self._check_iteration(each.iter)

    def _check_iteration(self, node: ast.expr) -> None:
        if self._names.resolve(node).kind == "set":
            self._add(node, "iterates over a set", rules.SET_ORDER)


def _instead_of(meaning: Meaning, count: int | None) -> str | None:
    """Return the alternative to an object of the table, found by its identity or by its name."""
    value = meaning.value
    if issubclass(type(value), type) and issubclass(value, BaseException):
        return None
    for name in (rules.full_name(value), meaning.name):
        if name is not None and (instead := rules.instead_of(name, count)) is not None:
            return instead
    if type(value) in (MethodType, BuiltinMethodType):
        # from secrets import choice
        return rules.instead_of_type(type(value.__self__))
    return None


def _body(node: FunctionNode | ast.Lambda) -> Sequence[ast.AST]:
    return node.body if isinstance(node.body, list) else [node.body]


def _step_of(value: Any) -> StepDef | None:
    """Return the definition of a step; no property of another object is asked for it."""
    try:
        found = object.__getattribute__(value, "__dict__").get("definition")
    except AttributeError:
        return None
    return found if isinstance(found, StepDef) else None


def _count(node: ast.Call) -> int | None:
    """Return the number of arguments of a call, or None if it is not known."""
    unpacked = any(isinstance(each, ast.Starred) for each in node.args)
    if unpacked or any(each.arg is None for each in node.keywords):
        return None
    return len(node.args) + len(node.keywords)


def _shown(node: ast.expr, meaning: Meaning) -> str:
    """Return how a function reads in a sentence: as the code has it, with its full name if that differs."""
    text = _text(node)
    name = rules.full_name(meaning.value) or meaning.name
    if name is None or name.startswith(("builtins.", "<")) or _last(name) == _last(text):
        return f"{text}()"
    return f"{text}(), which is {name}()"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _text(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
