"""The arguments of a call, by the signature of the function that takes them.

Lives here: `Signature`: binding, encoding and decoding arguments. May not: the meaning of a call (registry,
replay). The form: a JSON array if every bound argument is positional, else a JSON object by name. Defaults
are left out, so that a changed default does not affect existing runs. Decoding takes both forms, so psql
users write '["world"]' or '{"name": "world"}'; callers in other languages mix them: '{"*": [1], "b": 2}'.
Wrong arguments raise an `InvalidRequest` that names the function and the parameter, before anything is
recorded.

Annotations are resolved at first use, so that a module may define its types after its steps.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from pyengine.core.definitions.refusals import bind_read
from pyengine.core.values.codec import (
    UNWRITABLE,
    TypeCodec,
    pack_value,
    refuse_deep,
    refuse_non_finite,
    refuse_nul,
    type_codec,
    unwritable,
    wrong_type,
)
from pyengine.core.values.defaults import is_default, without_defaults
from pyengine.core.values.likeness import is_plain
from pyengine.core.values.shapes import PLAIN, SORTED
from pyengine.errors import DecodeError, EncodeError, InvalidRequest

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_decode_call = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
# beside arguments by name: those by position, which only callers of other languages mix
_BY_POSITION = "*"
if sys.version_info >= (3, 14):
    from annotationlib import Format

_WRONG = (msgspec.ValidationError, msgspec.DecodeError)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function; no annotation is evaluated, it may name a class that stands below.

    Raises:
        ValueError: they are not known.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


class Signature:
    """Binds, encodes and decodes the arguments of one function.

    Args:
        fn: the function.
        subject: its name in errors, e.g. "step charge".
    """

    def __init__(self, fn: Callable[..., Any], subject: str) -> None:
        self.fn = fn
        self.subject = subject
        try:
            self._signature = signature_of(fn)
        except ValueError as error:
            hint = "write a function that calls it: its name and its parameters are recorded"
            raise InvalidRequest(f"{subject}: its parameters are not known: {error}", hint=hint) from None
        parameters = list(self._signature.parameters.values())
        self._parameters = {one.name: one for one in parameters}
        positional = [one for one in parameters if one.kind in _POSITIONAL]
        self._positional = [one.name for one in positional]
        self._rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), None)
        self._extra = next((one.name for one in parameters if one.kind is one.VAR_KEYWORD), None)
        needs_name = any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters)
        self._fewest = sum(one.default is one.empty for one in positional) if not needs_name else 1 << 30
        self._most = len(positional) if self._rest is None else 1 << 30
        self._arrays: dict[int, tuple[TypeCodec, list[tuple[str, TypeCodec]]]] = {}

    @property
    def parameters(self) -> str:
        """The names of its parameters, with `=` for one that may be left out."""
        shown = []
        for one in self._parameters.values():
            stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
            shown.append(stars + one.name + ("" if one.default is one.empty else "="))
        return ", ".join(shown)

    def takes(self, name: str) -> bool:
        """Return whether an argument may have this name."""
        return name in self._parameters or self._extra is not None

    @cached_property
    def codecs(self) -> dict[str, TypeCodec]:
        """One codec for each parameter, and one for "return".

        Raises:
            InvalidRequest: an annotation cannot be resolved or is not supported.
        """
        try:
            hints = get_type_hints(self.fn, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise InvalidRequest(
                f"{self.subject}{self._place()}: an annotation cannot be resolved: {error}",
                hint="define and import its types at the top level of the module, not under TYPE_CHECKING",
            ) from error
        codecs = {}
        for name in (*self._parameters, "return"):
            try:
                codecs[name] = type_codec(hints.get(name, Any))
            except DecodeError as error:
                what = "its result" if name == "return" else f"parameter {name!r}"
                raise InvalidRequest(f"{self.subject}{self._place()}, {what}: {error.message}") from error
        return codecs

    def _place(self) -> str:
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"

    @cached_property
    def result(self) -> TypeCodec:
        """The codec of the return annotation."""
        return self.codecs["return"]

    @cached_property
    def _taken(self) -> list[TypeCodec]:
        return [codec for name, codec in self.codecs.items() if name != "return"]

    @cached_property
    def _pack(self) -> Callable[[Any], bytes]:
        # one encoder for all arguments, if it writes each of them exactly as their own codecs do
        packs = {PLAIN.encode, *(codec.pack for codec in self._taken)}
        if packs <= {PLAIN.encode}:
            return PLAIN.encode
        simple = all(codec.flat or codec.pack == SORTED.encode for codec in self._taken)
        return SORTED.encode if simple and packs <= {PLAIN.encode, SORTED.encode} else self._pack_each

    def _pack_each(self, form: tuple[Any, ...] | dict[str, Any]) -> bytes:
        """Return the JSON text of arguments, each encoded by its own codec."""
        each = [(name, msgspec.Raw(codec.pack(value))) for name, value, codec in self._each(form)]
        return _joined(form, each)

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the JSON text of a call: fast, unchecked, enough to compare with the journal.

        Raises:
            InvalidRequest: the arguments do not fit the signature.
            EncodeError: an argument cannot be encoded at all.
        """
        simple = not kwargs and self._fewest <= len(args) <= self._most
        form = args if simple else self._form(args, kwargs)
        try:
            return self._pack(form)
        except UNWRITABLE as error:
            for name, value, codec in self._each(form):
                pack_value(codec, value, f"argument {name!r} of {self.subject}")
            raise unwritable(f"an argument of {self.subject}", error, form) from error

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
        return self._form_of(self.bind(args, kwargs))

    def _form_of(self, bound: inspect.BoundArguments) -> tuple[Any, ...] | dict[str, Any]:
        if not bound.kwargs:
            return bound.args
        form = dict(bound.arguments)
        if self._extra is not None:
            form |= form.pop(self._extra, {})
        return form

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Return the arguments by parameter; their types are not checked.

        Raises:
            InvalidRequest: they do not fit the signature.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            shown = str(self._signature)
            raise InvalidRequest(f"{self.subject}: {error}", hint=f"it takes {shown}", takes=shown) from None
        if self._extra is not None:
            self._refuse_taken(bound.arguments.get(self._extra, {}))
        return bound

    def _refuse_taken(self, more: dict[str, Any]) -> None:
        """Refuse names for `**more` that stand for something else in a JSON object of arguments."""
        taken = {_BY_POSITION, *self._parameters} - {self._extra}
        for name in taken.intersection(more):
            what = "the arguments by position" if name == _BY_POSITION else f"the parameter {name}"
            raise InvalidRequest(
                f"{self.subject}: an argument by name cannot be called {name!r}, which is {what}",
                hint="give it another name, or pass a dict as one argument",
            )

    def _each(self, form: tuple[Any, ...] | dict[str, Any]) -> list[tuple[str, Any, TypeCodec]]:
        if isinstance(form, dict):
            return [(name, value, self._codec(name)) for name, value in form.items()]
        names = self._array(len(form))[1]
        return [(name, value, codec) for (name, codec), value in zip(names, form, strict=True)]

    def _codec(self, name: str) -> TypeCodec:
        if name in self._parameters and name not in (self._rest, self._extra):
            return self.codecs[name]
        if name == self._rest:
            return type_codec(GenericAlias(list, (self.codecs[name].annotation,)))
        return self.codecs[self._extra] if self._extra is not None else type_codec(Any)

    def _array(self, count: int) -> tuple[TypeCodec, list[tuple[str, TypeCodec]]]:
        """Return the codec of `count` positional arguments together, and one for each."""
        known = self._arrays.get(count)
        if known is None:
            names = self._positional[:count]
            named = [(name, self.codecs[name]) for name in names]
            if self._rest is not None:
                rest = self.codecs[self._rest]
                named += [(f"{self._rest}[{n}]", rest) for n in range(count - len(names))]
            types = tuple(codec.annotation for _, codec in named)
            whole: Any = GenericAlias(tuple, types)
            known = self._arrays[count] = (type_codec(whole), named)
        return known

    def check(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], packed: bytes, *, exact: bool = True
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """Return the text of a call and a copy of its arguments decoded from it.

        Args:
            args: positional arguments, as given to `pack`.
            kwargs: keyword arguments, as given to `pack`.
            packed: what `pack` returned.
            exact: whether an argument must not come back as something else that is equal, either.

        Raises:
            InvalidRequest: an argument does not fit its annotation.
            EncodeError: an argument would not come back equal.
        """
        refuse_deep(packed, f"an argument of {self.subject}")
        text = packed.decode()
        back = self._copy(args, kwargs, packed)
        try:
            equal = self._agree(args, kwargs, back) if kwargs else bool(args == back[0])
        except Exception:  # boundary to user code: __eq__ may do anything
            equal = False
        if (
            not equal
            or (exact and self._overlooks and not all(map(is_plain, (*args, *kwargs.values()))))
            or ("\\" in text and "\\u0000" in text)
            or (self._blind and "null" in text)
        ):
            for name, value, codec in self._each(self._form(args, kwargs)):
                where = f"argument {name!r} of {self.subject}"
                codec.check(value, pack_value(codec, value, where), where, exact=exact)
            # the name of an extra keyword argument may hold one too
            refuse_nul(text, f"an argument of {self.subject}", kwargs)
        return text, *back

    def _agree(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], back: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> bool:
        if not back[1] and list(kwargs) == self._positional[len(args) : len(back[0])]:
            return (*args, *kwargs.values()) == back[0]
        return self._by_name(args, kwargs) == self._by_name(*back)

    def _by_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return the arguments in one form, whether they were given by name or by position."""
        return dict(zip(self._positional, args, strict=False)) | kwargs, args[len(self._positional) :]

    def _copy(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], packed: bytes
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what `decode` returns; faster, since the form of the packed text is known."""
        try:
            if kwargs and packed[:1] == b"{":
                return self.decode(packed)
            # in an array each argument has its position
            count = len(args) + len(kwargs)
            known = self._arrays.get(count) or self._array(count)
            return known[0].unpack(packed), {}
        except (InvalidRequest, *_WRONG):
            for name, value, _ in self._each(self._form(args, kwargs)):
                refuse_non_finite(value, f"argument {name!r} of {self.subject}")
            return self.decode(packed)

    @cached_property
    def _overlooks(self) -> bool:
        return any(codec.overlooks for codec in self._taken)

    @cached_property
    def _blind(self) -> bool:
        return any(codec.blind for codec in self._taken)

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a JSON array or object, typed by the annotations.

        Raises:
            InvalidRequest: it is neither, or does not fit the signature.
        """
        try:
            raw = _decode_call(text or "[]")
        except _WRONG as error:
            raise InvalidRequest(
                f"{self.subject}: its arguments must be a JSON array or object: {error}",
                hint=f"""it takes {self._signature}; write '["world"]' or '{{"name": "world"}}'""",
            ) from None
        if isinstance(raw, dict):
            return self._decode_object(self._named(raw) if _BY_POSITION in raw else raw)
        if not self._fewest <= len(raw) <= self._most:
            bind_read(self, tuple(raw), {})
        whole, named = self._array(len(raw))
        try:
            return whole.unpack(text or "[]"), {}
        except _WRONG:
            return tuple(
                self.read(name, codec, one) for (name, codec), one in zip(named, raw, strict=True)
            ), {}

    def _named(self, raw: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return arguments by name, some of which a caller in another language gave by position."""
        named = dict(raw)
        given = _decode_list(named.pop(_BY_POSITION))
        names = self._positional[: len(given)]
        rest = given[len(names) :]
        if (rest and self._rest is None) or not named.keys().isdisjoint(names):
            bind_read(self, tuple(given), named)
        named |= zip(names, given, strict=False)
        if rest and self._rest is not None:
            named[self._rest] = msgspec.Raw(b"[" + b",".join(map(bytes, rest)) + b"]")
        return named

    def _decode_object(self, raw: dict[str, msgspec.Raw]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = {name: self.read(name, self._codec(name), one) for name, one in raw.items()}
        args: list[Any] = []
        rest = values.pop(self._rest, []) if self._rest is not None else []
        for name in self._positional:
            positional_only = self._parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY
            if name not in values or not (rest or positional_only):
                break
            args.append(values.pop(name))
        args.extend(rest)
        bind_read(self, tuple(args), values)
        return tuple(args), values

    def read(self, name: str, codec: TypeCodec, raw: msgspec.Raw) -> Any:
        """Return an argument.

        Raises:
            InvalidRequest: it does not fit its annotation.
        """
        try:
            return codec.unpack(raw)
        except _WRONG as error:
            wrong = wrong_type(codec.annotation, error)
            hint = "declare it as ... | None" if wrong.endswith("got `null`") else None
            raise InvalidRequest(f"{self.subject}, argument {name!r}: {wrong}", hint=hint) from None

    @cached_property
    def defaults(self) -> dict[str, msgspec.Raw]:
        """The JSON text of each default that would come back as it is."""
        texts = {}
        for name, one in self._parameters.items():
            if one.default is not one.empty:
                codec, where = self.codecs[name], f"the default of {name!r} of {self.subject}"
                with suppress(Exception):  # boundary to user code: `__eq__` may do anything
                    text, _ = codec.check(
                        one.default, pack_value(codec, one.default, where), where, exact=True
                    )
                    texts[name] = msgspec.Raw(text.encode())
        return texts

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, exact: bool = True) -> str:
        """Return the checked JSON text of a call; `exact` as of `check`.

        Raises:
            InvalidRequest: the arguments do not fit the signature or the annotations.
            EncodeError: an argument would not come back equal.
        """
        return self.check(args, kwargs, self.pack(args, kwargs), exact=exact)[0]

    def encode_json(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the checked JSON text of a call whose arguments may also be the JSON of their types.

        Raises:
            EngineError: as `encode`.
        """
        try:
            return self.encode(args, kwargs)
        except (EncodeError, InvalidRequest):
            form = self._form(args, kwargs)
            try:
                each = [
                    (name, msgspec.Raw(_json_of(codec, value))) for name, value, codec in self._each(form)
                ]
            except (EncodeError, *UNWRITABLE, *_WRONG):
                each = []
            if not each:
                raise
        return _joined(form, each).decode()

    # -- calls that are equal although their texts are not

    @cached_property
    def has_defaults(self) -> bool:
        """Whether a call may be written with defaults and without them: of parameters, or of fields."""
        return self._has_fields or any(one.default is not one.empty for one in self._parameters.values())

    @cached_property
    def _has_fields(self) -> bool:
        return any(codec.defaults for codec in self._taken)

    def pack_reduced(self, args: tuple[Any, ...], kwargs: dict[str, Any], packed: bytes) -> bytes:
        """Return the JSON text of a call without what has its default, in arguments and in their fields.

        Args:
            args: positional arguments, as given to `pack`.
            kwargs: keyword arguments, as given to `pack`.
            packed: what `pack` returned.
        """
        if not self.has_defaults or not (self._has_fields or kwargs or len(args) > self._fewest):
            return packed
        return self._reduced(self._form_of(self._given(args, kwargs)))

    def is_same_call(self, text: str, other: str) -> bool:
        """Return whether two JSON texts are the same call, by the types and defaults of today.

        One may have arguments by name, the other by position; one may leave out what has its default.
        """
        try:
            return self._meaning(text) == self._meaning(other)
        except (InvalidRequest, *_WRONG, *UNWRITABLE):
            return False

    def _meaning(self, text: str) -> bytes:
        bound = self._given(*self.decode(text))
        named = dict(bound.arguments)
        if self._extra is not None:
            named |= named.pop(self._extra, {})
        return SORTED.encode(msgspec.json.decode(self._reduced(named)))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Return the arguments by parameter, without those that have their default."""
        bound = self.bind(args, kwargs)
        for name, value in list(bound.arguments.items()):
            if is_default(value, self._parameters[name].default):
                del bound.arguments[name]
        return bound

    def _reduced(self, form: tuple[Any, ...] | dict[str, Any]) -> bytes:
        each = []
        for name, value, codec in self._each(form):
            packed = codec.pack(value)
            if codec.defaults:
                packed = PLAIN.encode(without_defaults(value, msgspec.json.decode(packed)))
            each.append((name, msgspec.Raw(packed)))
        return _joined(form, each)

    def place_of(self, name: str) -> int | None:
        """Return the position of a parameter, or None if there is none.

        One that goes by name only has a large number.
        """
        if name not in self._parameters or name in (self._rest, self._extra):
            return None
        return self._positional.index(name) if name in self._positional else 1 << 30

    def __str__(self) -> str:
        return str(self._signature)


def _json_of(codec: TypeCodec, value: Any) -> bytes:
    """Return the JSON text of a value of a type, or of plain JSON that can be read as that type."""
    where = "an argument"
    try:
        packed = codec.pack(value)
        codec.check(value, packed, where, exact=True)
    except (EncodeError, *UNWRITABLE):
        read = codec.unpack(PLAIN.encode(value))
        packed = codec.pack(read)
        codec.check(read, packed, where, exact=True)
    return packed


def _joined(form: tuple[Any, ...] | dict[str, Any], each: list[tuple[str, msgspec.Raw]]) -> bytes:
    """Return the JSON text of arguments, in the form that they have, of the texts of each."""
    return PLAIN.encode(dict(each) if isinstance(form, dict) else [raw for _, raw in each])
