"""Laws of the order of a mixture: exact shares, whole sources before a row comes again, numbers that run on."""

from collections import Counter

import pytest
from anyformer.pipelines.data.order import WITHOUT_END, Order, permuted, shares_of

WITHIN = 1.0  # rows; of four sources or more 1.3
MIXTURES = {
    "two": ({"a": 130, "b": 41}, {"a": 3, "b": 1}),
    "three": ({"a": 7, "b": 200, "c": 90}, {"a": 0.1, "b": 0.61, "c": 0.29}),
    "five, as sizes": (
        {"a": 330, "b": 198, "c": 108, "d": 23, "e": 18},
        {"a": 33, "b": 19.8, "c": 10.8, "d": 2.3, "e": 1.8},
    ),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_every_number_keeps_the_shares_and_sources_are_read_whole_before_they_come_again(name):
    sizes, weights = MIXTURES[name]
    order, drawn, seen = Order.by_shares(sizes, weights, seed=1), Counter(), {}
    for number in range(1500):
        assert order.drawn_before(number) == {source: drawn[source] for source in sizes}
        source, row, turn = order.draw(number)
        assert turn == drawn[source] // sizes[source]
        seen.setdefault((source, turn), []).append(row)
        drawn[source] += 1
        for each, weight in weights.items():
            assert abs(drawn[each] - weight / sum(weights.values()) * (number + 1)) < WITHIN + 0.3 * (len(sizes) > 3)
    for (source, turn), rows in seen.items():
        assert len(set(rows)) == len(rows)
        if (source, turn + 1) in seen:
            assert sorted(rows) == list(range(sizes[source])) and rows != seen[source, turn + 1][: len(rows)]


@pytest.mark.parametrize("name", MIXTURES)
def test_no_source_gives_a_row_twice_before_the_first_repeated_number(name):
    order = Order.by_shares(*MIXTURES[name], seed=1)
    end = order.length
    assert {turn for *_, turn in map(order.draw, range(end))} == {0} and order.draw(end).turn == 1


def test_other_shares_go_on_in_each_source_where_the_first_ones_stopped():
    """A stage: the rows of each source are those of a run that kept the first shares, for longer or shorter."""
    sizes, weights = MIXTURES["two"]
    first = Order.by_shares(sizes, weights, seed=1)
    both = Order(sizes, [(weights, 100), ({"a": 1, "b": 4}, WITHOUT_END)], seed=1)
    mixed = [both.draw(number) for number in range(200)]
    of_first = list(map(first.draw, range(600)))
    for source in sizes:
        own = [draw for draw in mixed if draw.source == source]
        assert own == [draw for draw in of_first if draw.source == source][: len(own)]
    assert both.drawn_before(100) == first.drawn_before(100) and both.drawn_before(200) != first.drawn_before(200)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 64, 65, 1000])
def test_a_permutation_moves_every_place_to_another_one(size):
    found = [permuted(place, size, b"key") for place in range(size)]
    assert sorted(found) == list(range(size))
    if size > 60:  # no row stands near where it was, nor in the order of another key
        far = sum(abs(place - row) for place, row in enumerate(found)) / size
        assert size / 4 < far < size / 2.3 and found != [permuted(place, size, b"other") for place in range(size)]


def test_weights_are_shares_of_tokens_of_documents_or_of_a_power_of_the_size():
    weights, tokens, documents = {"a": 1, "b": 2}, {"a": 1000, "b": 8000}, {"a": 10, "b": 10}
    assert shares_of(weights, "tokens", tokens, documents) == weights
    assert shares_of(weights, "documents", tokens, documents) == {"a": 100, "b": 1600}
    assert shares_of(weights, 3, tokens, documents) == pytest.approx({"a": 10, "b": 40})
