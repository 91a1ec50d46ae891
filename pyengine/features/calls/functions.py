"""Functions whose calls are content-addressed: memo functions and executables.

Lives here: `Memo`, `Executable`, their URIs, and how their arguments become inputs. May not: a call that has
begun (handles.py), the worker that runs memo functions (memo_runner.py). The theory: a function's identity is
its URI, which names its code by a version, or by a digest of its source. Configuration that changes results
is an input; what must not count (`ignore`) travels beside the inputs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import textwrap
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any, Generic, ParamSpec, TypeVar, cast
from urllib.parse import quote

import msgspec

from pyengine.core.definitions.callees import CallHandle, CallOptions
from pyengine.core.definitions.current_run import WorkflowRuntime, scope
from pyengine.core.definitions.refusals import refuse_no_function
from pyengine.core.definitions.registry import call_plain
from pyengine.core.definitions.signatures import Signature, signature_of
from pyengine.core.values.codec import type_codec
from pyengine.errors import EncodeError, InvalidRequest
from pyengine.features.calls.datums import Uri
from pyengine.features.calls.handles import begin
from pyengine.features.calls.inputs import BoundCall, Input, NodeSource, encode_input, holds_node
from pyengine.features.calls.typed_values import ValueType

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PREFIX = "python."
_VERSION_MAX = 128
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Executable:
    """A program that an adapter runs: `train = app.executable("dml+exec://batch/train", gpu=1)`.

    Args:
        function: URI of the program.
        config: its configuration, which is the first input if there is any.

    Raises:
        InvalidRequest: the URI is not in its normal form, or a value of the configuration is no plain data.
    """

    def __init__(self, function: str, config: Mapping[str, Any] | None = None) -> None:
        self.function = _checked_uri(function)
        self.config = dict(config or {})
        self._first = (encode_input(self.config, "the configuration"),) if self.config else ()

    def bind_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions) -> BoundCall:
        """Return a call of it.

        Raises:
            InvalidRequest: there are arguments by name, or one is no plain data.
        """
        if kwargs:
            raise InvalidRequest(
                f"{self.function} takes its inputs by position, not {', '.join(map(repr, kwargs))}",
                hint="give its configuration to app.executable(uri, name=value)",
            )
        inputs = tuple(encode_input(value, f"input {place}") for place, value in enumerate(args, 1))
        return BoundCall(function=self.function, inputs=self._first + inputs, options=options)

    def begin_call(
        self, within: WorkflowRuntime, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions
    ) -> CallHandle[Any]:
        """Begin a call in the workflow that is running."""
        return begin(within, self.bind_call(args, kwargs, options))

    def __repr__(self) -> str:
        return f"<executable {self.function}>"


class Memo(Generic[P, R]):
    """A function whose calls inside a workflow are content-addressed.

    A call takes its number in the journal at once; awaiting it gives the value. It can be an argument of
    another call. Outside a workflow the function just runs, a sync one in a thread.

    Attributes:
        name: its name, in lower case.
        adapter: its adapter, as its URI names it.
        function: URI of the function.
        ignore: parameters that are no part of the identity.
    """

    __name__: str

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str,
        function: str,
        ignore: frozenset[str],
        options: CallOptions,
    ) -> None:
        self.fn = fn
        self.name = name
        self.adapter = _PREFIX + name
        self.function = function
        self.ignore = ignore
        self.options = options
        self.is_async = inspect.iscoroutinefunction(fn)
        self._signature = signature_of(fn)
        self._codecs = Signature(fn, f"memo {name}")
        functools.update_wrapper(cast("Callable[..., Any]", self), fn)

    @property
    def served_as(self) -> str:
        """The name under which workers serve it: the adapter, with the version of the code."""
        return self.adapter + self.function[self.function.index("?") :]

    @functools.cached_property
    def result(self) -> ValueType:
        """The type of its result.

        Raises:
            InvalidRequest: an annotation cannot be resolved or is not supported.
        """
        return ValueType(self._codecs.result)

    @functools.cached_property
    def _types(self) -> dict[str, ValueType]:
        """The type of each parameter."""
        extra = {
            one.name: GenericAlias(dict, (str, self._codecs.codecs[one.name].annotation))
            for one in self._signature.parameters.values()
            if one.kind is one.VAR_KEYWORD
        }
        return {
            name: ValueType(type_codec(extra[name]) if name in extra else codec)
            for name, codec in self._codecs.codecs.items()
            if name != "return"
        }

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call the function.

        Raises:
            InvalidRequest: the arguments do not fit its signature, or one is no plain data.
        """
        within = scope.get()
        if within is not None:
            return cast("Awaitable[R]", self.begin_call(within, args, kwargs, CallOptions()))
        if self.is_async:
            return cast("Awaitable[R]", self.fn(*args, **kwargs))
        return call_plain(self.fn, args, kwargs)

    def begin_call(
        self, within: WorkflowRuntime, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions
    ) -> CallHandle[R]:
        """Begin a call in the workflow that is running."""
        return begin(within, self.bind_call(args, kwargs, options))

    def bind_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions) -> BoundCall:
        """Return a call of it, with the defaults of the signature.

        Raises:
            InvalidRequest: the arguments do not fit the signature, or one is no plain data.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest(f"memo {self.name}: {error}", hint=f"it takes {self._signature}") from None
        bound.apply_defaults()
        inputs: list[Input] = []
        ignored: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            where, kind = f"argument {name!r} of memo {self.name}", self._types[name]
            if name in self.ignore:
                if isinstance(value, NodeSource):
                    raise InvalidRequest(f"{where} is ignored, so it cannot be a call")
                ignored[name] = kind.encode(value, where)
            elif self._signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                inputs += [_input(kind, one, f"{where}[{n}]") for n, one in enumerate(value)]
            else:
                inputs.append(_input(kind, value, where))
        merged = self._merged(options, ignored)
        return BoundCall(function=self.function, inputs=tuple(inputs), options=merged, result=self.result)

    def _merged(self, options: CallOptions, ignored: dict[str, Any]) -> CallOptions:
        own = self.options
        request = dict(options.request or {})
        if ignored:
            request["ignored"] = ignored
        return msgspec.structs.replace(
            options,
            share=own.share if options.share is None else options.share,
            cache_errors=own.cache_errors if options.cache_errors is None else options.cache_errors,
            max_age_ms=own.max_age_ms if options.max_age_ms is None else options.max_age_ms,
            timeout_ms=own.timeout_ms if options.timeout_ms is None else options.timeout_ms,
            request=request or None,
        )

    def arguments(
        self, values: Sequence[Any], ignored: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the values of the inputs stand for: the reverse of `bind_call`.

        Raises:
            InvalidRequest: there are too few or too many values.
            DecodeError: a value does not fit its annotation.
        """
        kinds = list(self._signature.parameters.values())
        fixed = [one for one in kinds if one.kind is not one.VAR_POSITIONAL and one.name not in self.ignore]
        spread = next((one.name for one in kinds if one.kind is one.VAR_POSITIONAL), None)
        extra = len(values) - len(fixed)
        if extra < 0 or (extra and spread is None):
            raise InvalidRequest(f"memo {self.name} takes {self._signature}, not {len(values)} inputs")
        left = list(values)
        by_position: list[Any] = []
        by_name: dict[str, Any] = {}
        for one in kinds:
            where, kind = f"argument {one.name!r} of memo {self.name}", self._types[one.name]
            if one.kind is one.VAR_POSITIONAL:
                by_position += [kind.decode(value, where) for value in left[:extra]]
                del left[:extra]
                continue
            if one.name not in self.ignore:
                value = kind.decode(left.pop(0), where)
            elif one.name in ignored:
                value = kind.decode(ignored[one.name], where)
            elif one.default is not one.empty:
                value = one.default
            else:
                raise InvalidRequest(f"{where} is missing: it is ignored, so the request of the call has it")
            if one.kind in _BY_POSITION:
                by_position.append(value)
            elif one.kind is one.VAR_KEYWORD:
                by_name |= value or {}
            else:
                by_name[one.name] = value
        return tuple(by_position), by_name

    def __repr__(self) -> str:
        return f"<memo {self.function}>"


def _input(kind: ValueType, value: Any, where: str) -> Input:
    """Return the form of one input; parts of a container that holds calls are plain data."""
    return encode_input(value, where) if holds_node(value) else {"datum": kind.encode(value, where)}


def make_memo(
    fn: Callable[P, Any],
    *,
    name: str | None,
    version: str | None,
    ignore: Sequence[str],
    hash_includes: Sequence[Any],
    options: CallOptions,
) -> Memo[P, Any]:
    """Return the memo around a function.

    Args:
        fn: sync or async function; sync ones run in a thread.
        name: its name; the function's name by default.
        version: names the code; None means a digest of the source.
        ignore: names of parameters that are no part of the identity.
        hash_includes: functions, classes, modules and texts that are part of the digest.
        options: defaults of its calls.

    Raises:
        InvalidRequest: an option is wrong.
    """
    refuse_no_function(fn, "memo")
    given: object = fn
    chosen = getattr(fn, "__name__", None) if name is None else name
    if not callable(given) or not isinstance(chosen, str):
        raise InvalidRequest(f"a memo is a function with a name, not {fn!r}")
    chosen = chosen.lower()
    if not _NAME.fullmatch(_PREFIX + chosen):
        raise InvalidRequest(
            f"{chosen!r} is no name for a memo",
            hint='@app.memo(name="parse-page"): 57 at most of a-z 0-9 . - _',
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidRequest(f"memo {chosen} is a generator; return a list")
    names = frozenset([ignore] if isinstance(ignore, str) else ignore)
    unknown = sorted(names - set(signature_of(fn).parameters))
    if unknown:
        raise InvalidRequest(f"memo {chosen} has no parameter {unknown[0]!r} to ignore")
    code: object = version
    if version is not None and (not isinstance(code, str) or not code):
        raise InvalidRequest(f'memo {chosen}: version is a text such as "2", not {version!r}')
    if version is not None and hash_includes:
        raise InvalidRequest(f"memo {chosen} has a version, so hash_includes has no effect; leave one out")
    key = "version" if version else "source"
    text = quote(version, safe="") if version else _digest(fn, chosen, hash_includes)
    if len(text) > _VERSION_MAX:
        raise InvalidRequest(f"memo {chosen}: a version has {_VERSION_MAX} characters at most, as in a URI")
    if version is None and not hash_includes:
        warnings.warn(
            f"memo {chosen} has no version: its key is a digest of its own source, and a change in what it "
            f'calls is not noticed; write version="1", or hash_includes=[helper]',
            stacklevel=4,
        )
    function = _checked_uri(f"dml+exec://{_PREFIX}{chosen}/?{key}={text}")
    return Memo(fn, name=chosen, function=function, ignore=names, options=options)


def _digest(fn: Callable[..., Any], name: str, includes: Sequence[Any]) -> str:
    parts = [_source(fn, name), *(_source(one, name) for one in includes)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _source(one: Any, name: str) -> str:
    """Return the source of a function without its decorators, of a class or module, or a text itself."""
    if isinstance(one, str | bytes):
        return one if isinstance(one, str) else one.hex()
    try:
        text = textwrap.dedent(inspect.getsource(getattr(one, "fn", one)))
        first = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise InvalidRequest(
            f"memo {name}: the source of {one!r} cannot be read: {error}", hint='give it a version="1"'
        ) from None
    line = getattr(first, "lineno", 1) if hasattr(first, "decorator_list") else 1
    return "".join(text.splitlines(keepends=True)[line - 1 :])


def _checked_uri(text: str) -> str:
    given: object = text
    try:
        if isinstance(given, str) and ":" in given:
            return str(Uri(given))
    except EncodeError as error:
        raise InvalidRequest(f"{text!r} names no function: {error.message}", hint=error.hint) from None
    raise InvalidRequest(f"{text!r} names no function", hint='a URI such as "dml+exec://batch/train"')
