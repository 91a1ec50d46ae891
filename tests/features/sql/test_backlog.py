"""Law: signals that a generation leaves unread are those of the run: each is received once, in the order of
sending, with its key, whatever the run goes through; and a generation writes nothing for those that wait.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.features.sql.test_retention import DAY_MS, purge
from tests.support.clock import Clock
from tests.support.stories import Story, receive
from tests.support.verbs import Connection, ask, complete, done, refusal, send

ROWS = " union all ".join(
    f"select count(*) as rows, sum(pg_column_size(x)) as bytes from durable.{table} x"
    for table in ("_journal", "_signals", "_backlog", "_inboxes")
)
READ = """
select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)
from pg_stat_xact_user_tables where relname ~ '^_(backlog|signals|inboxes)$'
"""


class Consumer(Story):
    """A run that receives signals, and whose code begins again.

    Args:
        conn: a connection.
        clock: the database's clock.
    """

    def __init__(self, conn: Connection, clock: Clock, id_: str = "r") -> None:
        super().__init__(conn, clock, id_)
        self.child = 0

    def receive(self, *names: str) -> None:
        """The code asks for the next signal of each name."""
        first, self.child = self.child, self.child + len(names)
        self.report(commands=[receive(first + place, name) for place, name in enumerate(names)])

    def renew(self, *unseen: int, error: str | None = None) -> None:
        """It continues as new, with receives that it had given up, or fails and is tried again."""
        end: dict[str, Any] = {"do": "continue", "value": "[]", "on": [self.child, *unseen]}
        self.report(end=end if error is None else {**end, "error": error, "retry_in": 0})
        self.again()

    def received(self, name: str = "s") -> list[Any]:
        """The payloads that the present generation has received, by its journal."""
        query = (
            "select json_agg(s.data::json order by j.seq) from durable._journal j join durable._signals s"
            " on s.execution = j.execution and s.name = j.name and s.delivery = j.attempt"
            " where j.execution = %s and j.type = 'signal_received' and j.name = %s"
        )
        return ask(self.conn, (query, (self.execution, name)))[0] or []


def lawful(conn: Connection) -> None:
    """Every law holds at this moment."""
    assert conn.execute("select * from durable.check()").fetchall() == []


def stored(conn: Connection) -> tuple[int, int]:
    """Rows and bytes of all that signals and journals are made of."""
    rows, size = ask(conn, (f"select sum(rows), sum(bytes) from ({ROWS}) x", ()))
    return int(rows), int(size or 0)


@pytest.mark.parametrize("waiting", [20, 1000])
def test_a_generation_costs_the_same_whatever_waits(conn: Connection, clock: Clock, waiting: int) -> None:
    """With 1,000 unread signals each of ten generations writes the rows and bytes that it does with 20, and
    reads as many; what waits is moved once, by the first."""
    run = Consumer(conn, clock)
    many = "select count(durable.signal('r', 's', to_jsonb(n))) from generate_series(1000, %s) n"
    ask(conn, (many, (999 + waiting,)))
    run.receive("s")
    run.renew()
    costs = []
    for _ in range(10):
        before = stored(conn)
        (done_before,) = ask(conn, (READ, ()))
        run.receive("s")
        ask(conn, send("r", "s", "7777"))
        run.renew()
        (done_after,) = ask(conn, (READ, ()))
        after = stored(conn)
        costs.append((after[0] - before[0], after[1] - before[1], int(done_after - done_before)))
    assert {rows for rows, _, _ in costs} == {costs[0][0]} and costs[0][0] == 6
    assert max(size for _, size, _ in costs) < 1000
    assert max(read for _, _, read in costs) < 80
    assert run.received() == []
    run.receive("s")
    assert run.received() == [1011]
    lawful(conn)


class Model:
    """What a run of these programs is to receive: two names, with and without keys.

    Args:
        run: the run.
        rng: decides.
    """

    def __init__(self, run: Consumer, rng: random.Random) -> None:
        self.run, self.rng = run, rng
        self.unread: dict[str, list[int]] = {"a": [], "b": []}
        self.got: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
        self.waits: dict[str, int] = {}
        self.keys: set[tuple[str, str]] = set()
        self.sent = 0

    def send(self, name: str) -> None:
        """Somebody sends a signal, perhaps again."""
        self.sent += 1
        key = self.rng.choice([None, None, f"k{self.rng.randrange(8)}"])
        created = ask(self.run.conn, send("r", name, str(self.sent), key=key))[1]
        assert created == (key is None or (name, key) not in self.keys)
        if created:
            self.unread[name].append(self.sent)
            self.keys |= {(name, key)} if key else set()
        self.settle(name)

    def settle(self, name: str) -> None:
        """A receive that waits gets what is there."""
        if name in self.waits and self.unread[name]:
            self.got[name].append((self.waits.pop(name), self.unread[name].pop(0)))

    def receive(self, name: str) -> None:
        """The code asks for the next one, if it does not wait already."""
        if name not in self.waits:
            self.waits[name] = self.run.child
            self.run.receive(name)
            self.settle(name)

    def renew(self, name: str) -> None:
        """The next generation, which gets the last receipt of a name again if the code gave that up."""
        unseen = []
        if self.got[name] and self.rng.random() < 0.5:
            child, payload = self.got[name].pop()
            unseen.append(child)
            self.unread[name].insert(0, payload)
        self.begin(*unseen)

    def retry(self, name: str) -> None:
        """The next attempt gets all that this one got."""
        for each, got in self.got.items():
            self.unread[each][:0] = [payload for _, payload in got]
        self.begin(error='{"type": "ValueError", "message": "no"}')

    def begin(self, *unseen: int, error: str | None = None) -> None:
        """Receives that waited end with their generation."""
        self.run.renew(*unseen, error=error)
        self.got, self.waits = {"a": [], "b": []}, {}

    def step(self) -> None:
        """Something happens, and the journal says what the model says."""
        acts = [self.send, self.send, self.send, self.receive, self.receive, self.renew, self.retry]
        self.rng.choice(acts)(self.rng.choice("ab"))
        for name, got in self.got.items():
            assert self.run.received(name) == [payload for _, payload in got]


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 40))])
def test_random_lives(conn: Connection, clock: Clock, history: str, seed: int, number: int) -> None:
    """Signals, keys, receives, generations and attempts in any order; at the end all that is left comes, to
    the run and to a fork of it."""
    model = Model(Consumer(conn, clock), random.Random(seed + number))
    for place in range(60):
        model.step()
        if place % 10 == 9:
            lawful(conn)
    ask(conn, ("select durable.fork('r', new_id => 'f')", ()))
    for name, unread in model.unread.items():
        query = (
            "select coalesce(json_agg(s.data::json order by s.delivery), '[]') from durable._signals s"
            " join durable._inboxes i using (execution, name) join durable._executions h using (execution)"
            " where h.id = 'f' and name = %s and s.delivery > i.received"
        )
        assert ask(conn, (query, (name,))) == (unread,)
        for _ in range(len(unread)):
            model.receive(name)
        assert model.unread[name] == []
        assert model.run.received(name) == [payload for _, payload in model.got[name]]


def test_a_key_is_known_while_its_signal_waits(conn: Connection, clock: Clock) -> None:
    """A signal that an earlier generation left unread, or that came behind such, is not put there again; it
    has the number under which the present generation will receive it."""
    run = Consumer(conn, clock)
    for number in range(3):
        ask(conn, send("r", "s", str(number), key=f"k{number}"))
    run.receive("s")
    run.renew()
    assert ask(conn, send("r", "s", "3", key="k3")) == (3, True, False)
    for number, delivery in ((1, 1), (2, 2), (3, 3)):
        assert ask(conn, send("r", "s", "9", key=f"k{number}")) == (delivery, False, False)
    many = "select outcome, delivery from durable.signal_many('{r}', 's', '9', dedup => 'k3')"
    assert ask(conn, (many, ())) == ("already", 3)
    run.renew()
    run.receive("s")
    assert ask(conn, send("r", "s", "9", key="k1")) == (1, False, False)
    run.receive("s")
    run.receive("s")
    assert run.received() == [1, 2, 3]


def test_numbers_do_not_end(conn: Connection, clock: Clock) -> None:
    """A run that never receives all goes on beyond 2,147,483,647 signals."""
    run = Consumer(conn, clock)
    for number in range(3):
        ask(conn, send("r", "s", str(number), key=f"k{number}"))
    run.renew()
    conn.execute("update durable._backlog set number = number + 2147483646")
    far = "update durable._inboxes set backlog_from = 2147483646, backlog_upto = 2147483649"
    assert conn.execute(f"{far} where execution = {run.execution}".encode()).rowcount == 1
    for number in range(3, 6):
        assert ask(conn, send("r", "s", str(number), key=f"k{number}")) == (4, True, False)
        assert ask(conn, send("r", "s", "9", key="k2")) == (6 - number, False, False)
        run.receive("s")
        assert run.received() == [number - 3]
        lawful(conn)
        run.renew()
    ask(conn, ("select durable.fork('r', new_id => 'f', queue => 'other')", ()))
    assert ask(conn, ("select durable.signal('f', 's', '9', 'k5')", ())) == (3,)
    run.receive("s")
    assert run.received() == [3]
    lawful(conn)


def test_one_of_many_has_a_backlog(conn: Connection, clock: Clock) -> None:
    """A signal to several runs goes behind the backlog of one and is delivered to the others at once."""
    run, waits = Consumer(conn, clock), Consumer(conn, clock, "q")
    Consumer(conn, clock, "t")
    ask(conn, send("r", "s", "1"))
    run.renew()
    waits.receive("s")
    many = (
        "select array_agg(delivery order by n)"
        " from durable.signal_many('{q,r,t}', 's', payloads => '{5,6,7}')"
        " with ordinality as x (id, outcome, delivery, n)"
    )
    assert ask(conn, (many, ())) == ([1, 2, 1],)
    run.receive("s")
    run.receive("s")
    assert (run.received(), waits.received()) == ([1, 6], [5])


def test_a_fork_gets_the_backlog_at_once(conn: Connection, clock: Clock) -> None:
    """At every position a fork has all that the run was sent before it, in its order: received in the copied
    part or lying there; values for those that lie there can be set. What was sent later it has not."""
    run = Consumer(conn, clock)
    for number in range(4):
        ask(conn, send("r", "s", str(number), key=f"k{number}"))
    run.receive("s")
    run.renew()
    ask(conn, send("r", "s", "4"))
    for _ in range(2):
        run.report(outcomes=[done(run.child)])
        run.child += 1
        run.receive("s")
    ask(conn, send("r", "s", "5"))
    last = run.next_seq
    for upto in range(1, last + 1):
        ask(conn, ("select durable.fork('r', seq => %s, new_id => %s)", (upto, f"f{upto}")))
        query = (
            "select array_agg(data::integer order by delivery) from durable._signals"
            " where execution = (select head from durable._promises where id = %s)"
        )
        before = [1, 2, 3, 4, *([5] if upto == last else [])]
        assert ask(conn, (query, (f"f{upto}",))) == (before,)
        assert ask(conn, send(f"f{upto}", "s", "9", key="k3")) == (3, False, False)
        assert ask(conn, send(f"f{upto}", "s", "9")) == (len(before) + 1, True, False)
    values = json.dumps({"signal:s:3": 33})
    ask(conn, ("select durable.fork('r', new_id => 'given', set_values => %s::jsonb)", (values,)))
    assert ask(conn, (query, ("given",))) == ([1, 2, 33, 4, 5],)
    late = json.dumps({"signal:s:5": 55})
    assert refusal(conn, ("select durable.fork('r', seq => 1, set_values => %s::jsonb)", (late,))) == "WF004"
    run.receive("s")
    assert run.received() == [1, 2, 3]


def test_a_name_of_which_nothing_is_left_costs_nothing(conn: Connection, clock: Clock) -> None:
    """A run that receives each generation's signal, of a name of its own, in the next one counts one name."""
    run = Consumer(conn, clock)
    for number in range(5):
        ask(conn, send("r", f"reply-{number}"))
        run.renew()
        run.receive(f"reply-{number}")
        inboxes = "select array_agg(name) from durable._inboxes where execution = %s"
        assert ask(conn, (inboxes, (run.execution,))) == ([f"reply-{number}"],)
    run.renew()
    assert ask(conn, (inboxes, (run.execution,))) == (None,)
    assert ask(conn, ("select count(*) from durable._backlog", ())) == (0,)


def test_retention_leaves_what_waits(conn: Connection, clock: Clock) -> None:
    """Generations that were sent signals are removed, and what they left is received with its keys; it goes
    with the run."""
    run = Consumer(conn, clock)
    for number in range(4):
        ask(conn, send("r", "s", str(number), key=f"k{number}"))
    run.receive("s")
    for _ in range(3):
        clock.advance(DAY_MS)
        run.renew()
    clock.advance(31 * DAY_MS)
    assert purge(conn)["generations"] == 2
    assert [ask(conn, send("r", "s", "9", key=f"k{number}"))[1] for number in range(4)] == [False] * 4
    run.receive("s")
    run.receive("s")
    assert run.received() == [1, 2]
    lawful(conn)
    run.report(end=complete())
    lawful(conn)
    clock.advance(31 * DAY_MS)
    assert purge(conn)["runs"] == 1
    assert stored(conn) == (0, 0)


def test_why_names_what_lies_there(conn: Connection, clock: Clock) -> None:
    """A run that waits for another signal than those that lie in its backlog says so."""
    run = Consumer(conn, clock)
    ask(conn, send("r", "misspelt"))
    run.renew()
    run.receive("s")
    run.report(end={"do": "suspend", "on": [0], "kind": "signal"})
    assert ask(conn, ("select details -> 'unread' from durable.why('r')", ())) == (["misspelt"],)


@pytest.mark.unlawful
def test_an_unreadable_payload_is_seen(conn: Connection, clock: Clock) -> None:
    """Also before it is received."""
    run = Consumer(conn, clock)
    ask(conn, send("r", "s", "1"))
    run.renew()
    conn.execute("update durable._backlog set data = 'torn'")
    laws = conn.execute("select law from durable.check()").fetchall()
    assert laws == [("payload_of_a_signal_is_json",)]
