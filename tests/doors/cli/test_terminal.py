"""``ps`` and ``show`` in a real terminal: nothing wraps, and what is cut can be pasted.

The captures at three widths stand in the documentation, character by character.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import psycopg
import pytest
from rich.cells import cell_len

from pyengine.core.values.codec import input_hash
from tests.doors.cli.terminal import CTRL_C, Terminal, plain
from tests.examples.pages import Page
from tests.support.clock import Clock
from tests.support.tree import ROOT
from tests.support.verbs import receive, suspend

WIDTHS = (80, 100, 120)
PAGE = Page("docs/how-to/look-at-runs.md")
ORDER = "order-2027-01-15-berlin-shop-000417"
IMPORT = "import-customers-2027-01"
FAILED = "019b8c7e1f2a4b6d9e0c5a7b3d1f8e24"
HASH = "0123456789abcdef"
Connection = psycopg.Connection[Any]


def step(child: int, name: str, attempt: int = 1, **outcome: Any) -> dict[str, Any]:
    """One outcome of a local step."""
    return {"child": child, "name": name, "hash": HASH, "attempt": attempt} | outcome


def child_run(child: int, param: str) -> dict[str, Any]:
    """The start of a child run."""
    return {
        "do": "run",
        "child": child,
        "name": "import_page",
        "version": "1",
        "hash": input_hash("import_page", param),
        "param": param,
    }


@pytest.fixture
def scene(conn: Connection, clock: Clock, player: Any) -> None:
    """Runs in several states, at instants that do not change."""

    def start(workflow: str, args: str, id: str, **options: str) -> None:
        named = "".join(f", {name} => '{value}'" for name, value in options.items())
        conn.execute(f"select durable.start(%s, %s, id => %s{named})".encode(), (workflow, args, id))

    start("nightly_report", "[]", "nightly-report-2027-01-15")
    (report,) = player.claim("nightly_report")
    clock.advance(95_000)
    player.report(report, end={"do": "complete", "value": '{"orders": 1204, "total": "88410.50"}'})

    start("checkout", '{"cart": 17, "customer": "Ada"}', FAILED)
    (failing,) = player.claim("checkout")
    player.report(failing, outcomes=[step(0, "reserve_items", value='["pen", "ink"]')])
    clock.advance(1_300)
    place = "/srv/shop/releases/2027-01-15/lib/python3.11/site-packages/shop/payment.py"
    declined = json.dumps(
        {
            "type": "CardDeclined",
            "message": "the bank declined card 4242: insufficient funds",
            "traceback": f'Traceback (most recent call last):\n  File "{place}", line 41, in charge_card\n',
        }
    )
    player.report(
        failing, outcomes=[step(1, "charge_card", error=declined)], end={"do": "fail", "error": declined}
    )

    start("import_customers", '["crm.example.org"]', IMPORT)
    (parent,) = player.claim("import_customers")
    pages = [child_run(n, f'["page {n + 1}"]') for n in range(3)]
    player.report(parent, commands=pages, end={"do": "suspend", "on": [0, 1, 2], "kind": "all"})
    first, *_ = player.claim("import_page")
    clock.advance(4_200)
    player.report(first, end={"do": "complete", "value": "500"})

    conn.execute("select durable.set_progress(%s, 500, 1500, 'customers')", (IMPORT,))
    conn.execute("select durable.set_value(%s, 'source', '\"CRM of Berlin\"')", (IMPORT,))

    start("checkout", '{"cart": 18, "customer": "Grace"}', ORDER)
    (order,) = player.claim("checkout")
    player.report(order, outcomes=[step(0, "reserve_items", value='["lamp"]')])
    clock.advance(800)
    player.report(
        order, outcomes=[step(1, "charge_card", value='{"receipt": "r-000417", "amount": "49.90"}')]
    )
    player.report(order, commands=[receive(2, "approve")], end=suspend(2, kind="signal"))
    start("send_newsletter", '["january"]', "newsletter-january", delay="2 hours")
    start("checkout", '{"cart": 19, "customer": "Edsger"}', "order-2027-01-15-berlin-shop-000418")
    clock.advance(260_000)


def captures(dsn: str, *words: str) -> dict[int, str]:
    """What a command prints at each width, one beside the other."""
    terminals = {width: Terminal(dsn, *words, columns=width) for width in WIDTHS}
    found = {}
    for width, terminal in terminals.items():
        with terminal:
            code, found[width] = terminal.end()
        assert code == 0, found[width]
    return found


COMMANDS = {"ps": ("ps", "--limit", "5"), "show": ("show", ORDER)}


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_captures_of_the_documentation(dsn: str, name: str) -> None:
    """No line is wider than its terminal, and the page shows what is printed; PYENGINE_TEST_CAPTURE=1 writes
    the page."""
    for width, printed in captures(dsn, *COMMANDS[name]).items():
        shown, title = plain(printed), f"pyengine {name}, {width} columns"
        assert [line for line in shown.splitlines() if cell_len(line) > width] == []
        (block,) = [one.text for one in PAGE.blocks if one.title == title]
        if "PYENGINE_TEST_CAPTURE" in os.environ:
            text = (ROOT / PAGE.path).read_text(encoding="utf-8")
            head = f'```text title="{title}"\n'
            (ROOT / PAGE.path).write_text(text.replace(head + block, head + shown), encoding="utf-8")
        else:
            assert shown == block, f"at {width} columns it prints:\n{shown}"


@pytest.mark.sample(2)
@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (80, ("show", IMPORT)),
        (40, ("show", FAILED)),
        (30, ("ps", "-a")),
        (40, ("why", "--all")),
    ],
)
def test_nothing_wraps(dsn: str, columns: int, words: tuple[str, ...]) -> None:
    """Trees, long errors, values and very narrow lists fit too."""
    with Terminal(dsn, *words, columns=columns) as terminal:
        code, printed = terminal.end()
    assert code == 0
    assert ("in charge_card" in printed) == (FAILED in words)
    assert ("500/1500 customers" in printed and "CRM of Berlin" in printed) == (IMPORT in words)
    assert [line for line in plain(printed).splitlines() if cell_len(line) > columns] == []


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (("why", "--all"), ["CAUSE", "NAME", "RUNS", "OLDEST", "EXAMPLE"]),
        (("as-of", ORDER), ["CHILD", "KIND", "NAME", "STATE"]),
    ],
)
def test_long_cells_take_no_column_from_the_others(
    dsn: str, words: tuple[str, ...], titles: list[str]
) -> None:
    """At 80 columns a row is one line, and each column has its title, however long the last cell is."""
    with Terminal(dsn, *words, columns=80) as terminal:
        code, printed = terminal.end()
    lines = plain(printed).splitlines()
    (title,) = [number for number, line in enumerate(lines) if line.split() == titles]
    assert code == 0 and [line for line in lines if cell_len(line) > 80] == []
    assert all(len(line.split()) >= len(titles) - 1 for line in lines[title:])


@pytest.mark.usefixtures("scene")
def test_ids_of_a_list_can_be_pasted(dsn: str, conn: Connection, at_database: Any) -> None:
    """Each id of a narrow list, as it is printed there, finds its run in every command."""
    with Terminal(dsn, "ps", "--all") as terminal:
        _, printed = terminal.end()
    header, *lines = plain(printed).splitlines()
    assert header.split() == ["ID", "WORKFLOW", "STATE", "AGE", "TOOK", "DETAIL"]
    pasted = [line.split()[0] for line in lines]
    whole = [id for (id,) in conn.execute("select id from durable.newest").fetchall()]
    assert [at_database("show", id, "--json").document["run"]["id"] for id in pasted] == whole
    assert [id for id in pasted if "…" in id]
    with Terminal(dsn, "pause", "import-customers") as terminal:
        code, printed = terminal.end()
    assert (code, f"import-customers stands for {IMPORT}" in printed, "paused" in printed) == (0, True, True)
    order = next(id for id in pasted if id.endswith("417"))
    for words in (("pause", order), ("resume", order), ("as-of", order), ("signal", order, "approve")):
        answer = at_database(*words)
        assert (words, answer.code, ORDER in answer.out) == (words, 0, True)


@pytest.mark.usefixtures("scene")
def test_states_have_colours_on_a_terminal_only(dsn: str, at_database: Any) -> None:
    """States are coloured, except with NO_COLOR and where stdout is no terminal."""
    with Terminal(dsn, "ps") as coloured, Terminal(dsn, "ps", NO_COLOR="1") as colourless:
        assert re.search(r"\x1b\[32mcompleted", coloured.end()[1])
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", colourless.end()[1])
    assert "\x1b" not in at_database("ps").out


@pytest.mark.usefixtures("scene")
def test_watch_redraws_and_ends_at_ctrl_c(dsn: str, conn: Connection) -> None:
    """A new run appears, a change of state too; Ctrl-C leaves the terminal as it was, with the last list."""
    with Terminal(dsn, "ps", "--watch", "--interval", "0.1", lines=12) as terminal:
        terminal.read_until("Ctrl-C ends")
        conn.execute("select durable.start('checkout', id => 'new-order')")
        terminal.read_until("new-order")
        terminal.type(CTRL_C)
        code, printed = terminal.end()
    assert code == 0
    before, _, after = printed.partition("\x1b[?1049l")
    assert before.count("\x1b[?1049h") == before.count("\x1b[?7h") == 1
    assert "\x1b[?25h" in printed
    assert "new-order" in after
    assert "interrupted" not in printed
    frames = [frame.split("\n") for frame in plain(before).split("\x1b[H")[1:]]
    assert max(map(len, frames)) <= 12


@pytest.mark.usefixtures("scene")
def test_a_long_run_is_watched_in_a_low_terminal(dsn: str) -> None:
    """The lines in the middle are left out, not the head and the end of the journal; SIGTERM ends it too."""
    with Terminal(dsn, "show", ORDER, "--watch", "--interval", "0.1", lines=10) as terminal:
        terminal.read_until("Ctrl-C ends")
        terminal.terminate()
        code, printed = terminal.end()
    assert "\x1b[?1049l" in printed
    assert code == 0
    frame = plain(printed).split("\x1b[H")[2].split("\n")[:10]
    assert frame[0].startswith(ORDER)
    assert "waits for" in frame[8]
    assert any(line.startswith("…") for line in frame)


def test_the_shell_completes_commands(dsn: str) -> None:
    """Typer's completion knows the commands, and the states of runs."""
    found = {}
    for typed in ("pyengine sh", "pyengine ps --state c"):
        asked = {"_PYENGINE_COMPLETE": "complete_bash", "COMP_WORDS": typed}
        with Terminal(dsn, **asked, COMP_CWORD=str(typed.count(" "))) as terminal:
            code, printed = terminal.end()
        found[typed] = (code, printed.split())
    assert found == {
        "pyengine sh": (0, ["show"]),
        "pyengine ps --state c": (0, ["cancelling", "completed", "cancelled"]),
    }


def test_the_page_names_every_width() -> None:
    """The page has a capture of each command at each width, and no other."""
    titles = [block.title for block in PAGE.blocks if "columns" in block.title]
    assert titles == [f"pyengine {name}, {width} columns" for name in COMMANDS for width in WIDTHS]
