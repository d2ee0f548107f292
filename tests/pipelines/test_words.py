"""Words that say how far a long preparation is."""

from anyformer.pipelines import words


def test_a_number_has_the_unit_of_its_rounded_value():
    numbers = {999: "999", 999_499: "999k", 999_999: "1M", 999_999_999: "1B", 4_981_248: "4.98M", 12: "12"}
    assert {number: words.short_number(number) for number in numbers} == numbers


def test_where_no_terminal_shows_a_bar_lines_say_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(words, "BETWEEN_LINES", 0)
    assert list(words.watched("abc", "teacher, texts")) == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == [f"teacher, texts {n} of 3, 0:00 left" for n in (1, 2)]
    monkeypatch.setenv("RANK", "1")
    assert list(words.watched("ab", "teacher, texts")) == ["a", "b"]
    assert capsys.readouterr().err == ""
