"""Law: nothing but `pyengine/core/process/backoff.py` has a power or a shift whose exponent is a variable.

A counter of failures or of empty rounds grows for as long as nothing happens, so a power of it overflows one
quiet night. For SQL it is the rule `growth` of the lint.
"""

from __future__ import annotations

import ast

import pytest

from tests.support.tree import Module, modules

GROWER = "pyengine/core/process/backoff.py"
POWERS = {"pow", "exp", "exp2", "ldexp", "factorial"}


def is_constant(node: ast.expr) -> bool:
    """Whether a value is written out: a number, or an expression of numbers."""
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    if isinstance(node, ast.BinOp):
        return is_constant(node.left) and is_constant(node.right)
    return isinstance(node, ast.Constant)


def growths(module: Module) -> list[int]:
    """The lines with a power or a shift to the left by what is no constant."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            if not is_constant(node.right):
                found.append(node.lineno)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Pow | ast.LShift):
            found.append(node.lineno)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in POWERS and not all(map(is_constant, node.args)):
                found.append(node.lineno)
    return found


def test_pauses_grow_in_one_place() -> None:
    """No module of the package has such an expression, except the one function."""
    found = {module.path: lines for module in modules("pyengine") if (lines := growths(module))}
    assert list(found) == [GROWER] and len(found[GROWER]) == 1, found


@pytest.mark.parametrize(
    "text",
    [
        "pause = min(longest, 2.0 ** (steps - 7))",
        "pause = 4**self._vain",
        "pause = 1 << rounds",
        "pause <<= 1",
        "pause **= 2",
        "pause = pow(2, rounds)",
        "pause = math.exp(rounds)",
        "pause = math.ldexp(1.0, rounds)",
        "pause = 0.01 * 2 ** min(rounds, 10)",
    ],
)
def test_a_growth_is_found(text: str) -> None:
    """An expression that may overflow is refused, with a bound too: that belongs to the one function."""
    assert growths(Module(path="pyengine/x.py", text=text)) == [1]


@pytest.mark.parametrize("text", ["a = 2**53 - 1", "a = salt << 20", "f(**more)", "a = 10**-3", "a >>= n"])
def test_a_constant_exponent_is_allowed(text: str) -> None:
    """Limits are written as powers, and calls take keywords."""
    assert growths(Module(path="pyengine/x.py", text=text)) == []
