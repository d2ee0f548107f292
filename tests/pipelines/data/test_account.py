"""Laws of the account: sums in any order are the same, nothing is lost, and what is usual needs no sentence."""

import json
import random
from functools import reduce

import pytest
from anyformer.pipelines.data import account as account_module
from anyformer.pipelines.data.account import LEFT_OUT, OTHERS, PLACES, READ_AS, UNUSED, USED, Account, ColumnsMet
from anyformer.pipelines.data.account_words import lines, unusual
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.text("abc1", min_size=1, max_size=2)
PLACE = st.builds("a.csv, line {}".format, st.integers(1, 99))
COUNT = st.integers(1, 9)
EVENTS = st.one_of(
    st.tuples(st.just("used"), st.just("column"), NAMES, COUNT),
    st.tuples(st.just("unused"), st.just("key"), NAMES, COUNT),
    st.tuples(st.just("read_as"), st.just("class"), NAMES, NAMES, COUNT),
    st.tuples(st.just("cut"), st.just("text"), NAMES, COUNT),
    st.tuples(st.just("left_out"), st.just("row"), NAMES, COUNT, PLACE),
)


def account_of(events) -> Account:
    account = Account()
    for fate, *given_ in events:
        place = {"place": given_.pop()} if fate == "left_out" else {}
        getattr(account, fate)(*given_, **place)
    return account


@pytest.fixture(autouse=True, scope="module")
def few_names():
    """So few that some are summed up."""
    most, account_module.KEPT = account_module.KEPT, 4
    yield
    account_module.KEPT = most


@given(st.lists(EVENTS, max_size=40), st.integers(1, 5), st.randoms())
def test_parts_add_up_to_the_whole_in_any_order(events, parts, draw: random.Random):
    whole, shuffled = account_of(events), draw.sample(events, len(events))
    accounts = [account_of(shuffled[part::parts]) for part in range(parts)]
    assert reduce(Account.__add__, accounts) == reduce(lambda sum_, one: one + sum_, accounts) == whole
    assert Account.from_json(json.loads(json.dumps(whole.to_json()))) == whole


@given(st.lists(EVENTS, max_size=60))
def test_nothing_is_lost_where_names_are_many(events):
    account = account_of(events)
    for fate, what in ((USED, "column"), (UNUSED, "key"), (READ_AS, "class")):
        assert account.number(fate, what) == sum(event[-1] for event in events if event[:2] == (fate, what))
        assert fate == USED or sum(1 for _ in account.entries(fate, what)) <= 5
    for key, entry in account.entries(LEFT_OUT, "row"):
        if key.why == OTHERS:
            continue
        places = {event[-1] for event in events if event[0] == LEFT_OUT and event[2] == key.why}
        assert entry.places == tuple(sorted(places, key=lambda place: int(place.split()[-1])))[:PLACES]


def test_what_is_usual_needs_no_sentence_and_is_in_the_lines():
    account = Account()
    account.used("row", number=10)
    account.used("column", "text", 10)
    account.unused("column", "author", 10)
    account.used("class", "never", 0)
    account.read_as("file", "a.csv", "utf-8", is_usual=True)
    assert unusual(account) == []
    assert lines(account)[:3] == ["classes: never 0", "columns: text 10", "rows: 10"]
    assert lines(account)[3] == "columns not read: author 10"
    account.unused("column", "lable", 1)
    assert unusual(account) == ["not read, and in some rows only: 'lable' (1)"]


def test_several_files_and_several_reasons_are_one_sentence():
    account = Account()
    for name in ("b.csv", "c.csv"):
        account.read_as("file", name, "cp1252, not UTF-8", hint="if that is wrong, set data.encoding")
    account.left_out("row", "'text' holds null, not text", 2)
    account.left_out("row", "not valid JSON")
    account.read_as("class", "Billing ", "Billing", 21)
    assert unusual(account) == [
        "read as cp1252, not UTF-8: b.csv and 1 more; if that is wrong, set data.encoding",
        "3 rows left out (data.bad_rows=skip): 2 'text' holds null, not text; 1 not valid JSON",
        "classes read as others: 'Billing ' as 'Billing' (21)",
    ]


def test_of_a_dict_whose_parts_are_read_the_others_are_not_read_and_of_one_that_is_not_read_none_is_named():
    met = ColumnsMet(["text", "answers.text", "tools"])
    met.add({"text": "a", "answers": {"text": ["b"], "start": [1]}, "meta": {"source": {"page": 1}}, "tools": None})
    met.add({"text": "a", "answers": {"text": None}, "tools": {"name": "rain"}, "note": None})
    account = Account()
    met.into(account)
    found = {
        fate: {key.name: entry.number for key, entry in account.entries(fate, "column")} for fate in (USED, UNUSED)
    }
    assert found[USED] == {"text": 2, "answers.text": 2, "tools": 1}
    assert found[UNUSED] == {"answers.start": 1, "meta": 1, "note": 1}
