"""Files in the many shapes in which people have their data: name -> (what writes it into a folder, the right task)."""

import csv
import gzip
import io
import json
import random
from pathlib import Path

SUBJECTS = [
    "the printer",
    "my invoice",
    "the new phone",
    "our account",
    "this film",
    "the hotel room",
    "a small bridge",
]
VERBS = ["stopped working", "was far too expensive", "looks really lovely", "never arrived here", "surprised all of us"]
ENDS = ["on Monday morning", "after two weeks", "in the end", "again and again", "for no reason that we know"]
DEUTSCH = ["Der Drucker", "Die Rechnung", "Das neue Gerät", "Unser Konto", "Dieser Film"]
TUT = ["ist nicht mehr zu gebrauchen", "war für uns viel zu teuer", "sieht wirklich schön aus", "kam nie bei mir an"]


class Words:
    """Sentences drawn from a seed."""

    def __init__(self, seed: int = 0):
        self.draw = random.Random(seed)

    def __call__(self, sentences: int = 1) -> str:
        return " ".join(
            f"{self.draw.choice(SUBJECTS).capitalize()} {self.draw.choice(VERBS)} {self.draw.choice(ENDS)}, "
            f"number {self.draw.randrange(1000)}."
            for _ in range(sentences)
        )

    def german(self) -> str:
        return f"{self.draw.choice(DEUTSCH)} {self.draw.choice(TUT)}, und das ist Nummer {self.draw.randrange(1000)}."

    def one(self, *values):
        return self.draw.choice(values)


def as_csv(rows: list[dict], delimiter: str = ",") -> str:
    out = io.StringIO()
    table = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()


def as_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def shape(task: str, name: str, number: int = 60):
    """Decorator: a function from Words and a row's number to a row, written as the suffix of `name` says."""

    def made(row):
        def write(folder: Path) -> Path:
            words = Words()
            rows = [row(words, index) for index in range(number)]
            path = folder / name
            if path.suffix == ".parquet":
                import pyarrow as pa
                import pyarrow.parquet as pq

                pq.write_table(pa.Table.from_pylist(rows), path)
            elif path.suffix == ".json":
                path.write_text(json.dumps(rows), encoding="utf-8")
            else:
                write_rows = {".csv": as_csv, ".tsv": lambda rows: as_csv(rows, "\t")}.get(path.suffix, as_lines)
                path.write_text(write_rows(rows), encoding="utf-8")
            return path

        SHAPES[row.__name__] = (write, task)
        return row

    return made


def written(task: str):
    """Decorator: a function that writes into a folder and returns what `new` is given."""

    def made(write):
        SHAPES[write.__name__] = (write, task)
        return write

    return made


SHAPES: dict = {}

# ---- classes


@written("sequence_classification")
def tickets_of_a_german_spreadsheet(folder):
    words = Words()
    spellings = ["Abrechnung", "abrechnung", "Abrechnung ", "Technik", "technik", "Konto", "KONTO", "Sonstiges"]
    rows = [
        {
            "Ticket-Nr": 4000 + index,
            "Erstellt am": f"{1 + index % 28:02}.03.2026",
            "Betreff": words.german()[:24],
            "Beschreibung": words.german() + " " + words.german() + " Grüße",
            "Abteilung": words.one(*spellings),
        }
        for index in range(120)
    ]
    path = folder / "Tickets März.csv"
    path.write_bytes(as_csv(rows, ";").encode("cp1252"))
    return path


@written("sequence_regression")
def german_grades_with_decimal_commas(folder):
    words = Words()
    rows = [
        {"Nr.": index + 1, "Aufsatz": f"{words.german()} {words.german()}", "Note": f"{1 + index % 4},{index * 7 % 10}"}
        for index in range(80)
    ]
    path = folder / "noten.csv"
    path.write_text(as_csv(rows, ";"), encoding="utf-8")
    return path


@shape("sequence_classification", "bewertungen.csv")
def german_stars_beside_a_price(words, index):
    text = f'{words.german()}\nEr sagte: "Nie wieder; wirklich!"\n'
    return {"Datum": f"{1 + index % 28:02}.03.2026", "Text": text, "Preis": f"{index % 40},5", "Sterne": 1 + index % 5}


@shape("text_to_text", "faq.csv")
def german_questions_and_answers(words, index):
    return {"Frage": f"{words.german()}?", "Antwort": f"{words.german()} {words.german()}"}


@shape("sequence_classification", "imdb.csv")
def texts_and_numbered_labels(words, index):
    return {"text": words(3), "label": int(index >= 30)}  # sorted by class


@shape("sequence_classification", "Reviews.csv")
def stars_among_many_columns(words, index):
    return {
        "": index,
        "Id": 1000 + index,
        "ProductId": f"B00{index % 7}E4KFG0",
        "UserId": f"A3SGX{index:04}",
        "HelpfulnessNumerator": index % 9,
        "Score": 1 + index % 5,
        "Time": 1303862400 + 991 * index,
        "Summary": words()[:20],
        "Text": words(3),
    }


@shape("sequence_classification", "questions.jsonl")
def a_class_as_number_and_as_name(words, index):
    names = ("ABBR", "DESC", "LOC")
    fine = ("ABBR:exp", "DESC:def", "LOC:city")
    return {"text": words(), "label": index % 3, "label_name": names[index % 3], "fine_label_name": fine[index % 3]}


@shape("sequence_classification", "spam.tsv")
def messages_and_ham_or_spam(words, index):
    return {"v1": words.one("ham", "spam"), "v2": words()}


@shape("sequence_classification", "train.parquet")
def parquet_of_intents(words, index):
    return {"utterance": words()[:40], "intent": f"intent_{index % 12}", "is_test": index % 2 == 0}


@shape("sequence_classification", "tweets.csv")
def tweets_with_keyword_and_place(words, index):
    place = words.one("", "Berlin", "New York, USA", "somewhere")
    return {
        "id": index,
        "keyword": words.one("fire", "flood", "crash"),
        "location": place,
        "text": words(),
        "target": index % 2,
    }


@shape("sequence_classification", "nli.jsonl")
def premise_and_hypothesis(words, index):
    label = words.one("entailment", "neutral", "contradiction")
    return {"pairID": f"{index}n", "genre": "fiction", "premise": words(), "hypothesis": words(), "gold_label": label}


@shape("sequence_classification", "quora.csv")
def two_questions_duplicate_or_not(words, index):
    ids = {"id": index, "qid1": 2 * index + 1, "qid2": 2 * index + 2}
    return ids | {"question1": words() + "?", "question2": words() + "?", "is_duplicate": index % 2}


@shape("sequence_classification", "xnli.tsv")
def pairs_in_several_languages(words, index):
    label = words.one("entailment", "neutral", "contradiction")
    return {"language": words.one("de", "en"), "gold_label": label, "sentence1": words(), "sentence2": words.german()}


@written("sequence_classification")
def workbook_of_feedback(folder):
    import openpyxl

    words, book = Words(), openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Datum", "Kunde", "Feedback", "Kategorie"])
    for index in range(60):
        sheet.append(
            [f"2026-03-{1 + index % 28:02}", f"K{index:03}", words.german(), words.one("Lob", "Kritik", "Frage")]
        )
    book.save(folder / "feedback.xlsx")
    return folder / "feedback.xlsx"


@written("sequence_classification")
def folder_of_train_and_test(folder):
    words = Words()
    for split, number in (("train", 60), ("test", 30)):
        rows = [{"text": words(2), "category": words.one("sports", "business", "world")} for _ in range(number)]
        (folder / f"{split}.csv").write_text(as_csv(rows))
    unlabelled = [{"id": index, "category": "world"} for index in range(30)]
    (folder / "sample_submission.csv").write_text(as_csv(unlabelled))
    return folder


@shape("sequence_classification", "kaggle.json")
def export_of_label_studio_min(words, index):
    return {
        "text": words(2),
        "id": index,
        "sentiment": words.one("Positive", "Negative", "Neutral"),
        "annotator": 1 + index % 2,
        "annotation_id": 70 + index,
        "created_at": f"2026-02-0{1 + index % 9}T08:42:45.553Z",
        "lead_time": 1.5 + index / 7,
    }


@shape("sequence_classification", "export.json")
def export_of_label_studio(words, index):
    choice = {"choices": [words.one("Positive", "Negative")]}
    result = [{"value": choice, "id": f"x{index}", "from_name": "sentiment", "to_name": "text", "type": "choices"}]
    return {"id": index, "annotations": [{"id": 90 + index, "result": result}], "data": {"text": words(2)}}


@shape("sequence_classification", "boolq.jsonl")
def yes_and_no_about_a_passage(words, index):
    return {"question": words() + "?", "passage": words(8), "answer": index % 3 == 0}


@written("sequence_classification")
def folders_of_texts_by_class(folder):
    words = Words()
    for split in ("train", "test"):
        for name in ("pos", "neg"):
            (folder / split / name).mkdir(parents=True)
            for index in range(15):
                (folder / split / name / f"{index}_7.txt").write_text(words(3))
    return folder


@written("sequence_classification")
def table_without_names_of_columns(folder):
    words = Words()
    rows = [f"{words.one('ham', 'spam')}\t{words()}" for _ in range(60)]
    (folder / "sms.tsv").write_text("\n".join(rows) + "\n")
    return folder / "sms.tsv"


@written("sequence_classification")
def quoted_rows_without_names_of_columns(folder):
    words = Words()
    rows = [f'"{1 + index % 4}","{words.one("", words()[:20])}","{words(2)}"\n' for index in range(60)]
    (folder / "ag.csv").write_text("".join(rows))
    return folder / "ag.csv"


@written("sequence_classification")
def text_file_with_tabs(folder):
    words = Words()
    (folder / "sms.txt").write_text("".join(f"{words.one('ham', 'spam')}\t{words()}\n" for _ in range(60)))
    return folder / "sms.txt"


@written("sequence_classification")
def text_file_with_semicolons(folder):
    words = Words()
    (folder / "train.txt").write_text("".join(f"{words()};{words.one('joy', 'anger')}\n" for _ in range(60)))
    return folder / "train.txt"


@written("sequence_classification")
def workbook_whose_first_sheet_has_no_rows(folder):
    import openpyxl

    words, book = Words(), openpyxl.Workbook()
    book.active.append(["How to fill this in"])
    sheet = book.create_sheet("answers")
    sheet.append(["Comment", "Category"])
    for _ in range(60):
        sheet.append([words(), words.one("praise", "complaint")])
    book.save(folder / "answers.xlsx")
    return folder / "answers.xlsx"


@shape("sequence_classification", "snli.jsonl")
def labels_of_annotators_beside_the_gold_one(words, index):
    labels = [words.one("entailment", "neutral", "contradiction") for _ in range(5)]
    row = {"annotator_labels": labels, "gold_label": labels[0], "pairID": f"{index}c"}
    return row | {"sentence1": words(), "sentence2": words(), "sentence1_parse": f"( {words()} )"}


@written("sequence_classification")
def rows_by_their_ids(folder):
    words = Words()
    rows = {f"id{index}": {"text": words(2), "label": words.one("a", "b")} for index in range(60)}
    (folder / "rows.json").write_text(json.dumps(rows))
    return folder / "rows.json"


@written("sequence_classification")
def columns_as_pandas_writes_them(folder):
    words = Words()
    columns = {"text": lambda: words(2), "label": lambda: words.one("a", "b")}
    table = {name: {str(index): value() for index in range(60)} for name, value in columns.items()}
    (folder / "frame.json").write_text(json.dumps(table))
    return folder / "frame.json"


@written("sequence_classification")
def packed_table(folder):
    words = Words()
    rows = [{"text": words(2), "label": words.one("spam", "ham")} for _ in range(60)]
    (folder / "reviews.csv.gz").write_bytes(gzip.compress(as_csv(rows).encode()))
    return folder / "reviews.csv.gz"


@shape("sequence_classification", "news.csv")
def dates_and_ids_that_look_like_classes(words, index):
    row = {"date": f"{1 + index % 5:02}/03/2026", "store_id": 1000 + index % 9, "headline": words()}
    return row | {"section": words.one("sport", "politics", "arts")}


@shape("sequence_classification", "tweets.csv")
def sentiment_below_and_above_zero(words, index):
    return {"tweet": f"„{words()}“", "sentiment": index % 3 - 1}


@shape("sequence_classification", "comments.csv")
def yes_or_no(words, index):
    return {"comment": words(2), "urgent": words.one("yes", "no")}


# ---- several classes


@shape("multi_label_classification", "articles.csv")
def topics_in_one_cell(words, index):
    topics = words.draw.sample(["politics", "sports", "science", "arts"], 1 + index % 3)
    return {"id": index, "title": words()[:25], "abstract": words(4), "topics": "; ".join(topics)}


@shape("multi_label_classification", "emotions.jsonl")
def lists_of_numbers_of_classes(words, index):
    return {"text": words(), "labels": words.draw.sample(range(6), 1 + index % 2), "id": f"ee{index}x"}


@shape("multi_label_classification", "toxic.csv")
def a_column_for_each_class(words, index):
    names = ("toxic", "severe_toxic", "obscene", "threat", "insult")
    return {"id": f"00{index}a7f", "comment_text": words(2)} | {name: int(words.draw.random() < 0.4) for name in names}


# ---- numbers


@shape("sequence_regression", "essays.csv")
def essays_and_a_score(words, index):
    row = {"id": f"c12{index}", "url_legal": "", "license": words.one("", "CC BY"), "excerpt": words(6)}
    return row | {"target": round(words.draw.gauss(-1, 1), 6), "standard_error": round(words.draw.random(), 6)}


@shape("sequence_regression", "houses.csv")
def many_numbers_and_one_text(words, index):
    numbers = {name: words.draw.randrange(1, 400) for name in ("rooms", "area", "year_built", "floor", "distance")}
    return {"Unnamed: 0": index} | numbers | {"listing": words(3), "price": 1000 * words.draw.randrange(80, 900)}


@shape("sequence_regression", "mqm.tsv")
def quality_of_translations(words, index):
    return {"lp": "en-de", "src": words(), "mt": words.german(), "ref": words.german(), "score": round(-index / 7, 3)}


@shape("sequence_regression", "flats.csv")
def rent_with_decimals(words, index):
    return {"flat": words(2), "rent": f"{400 + 7.5 * index:.2f}"}


# ---- two texts


@shape("sentence_similarity", "sts.csv")
def pairs_and_how_similar(words, index):
    return {"sentence1": words(), "sentence2": words(), "score": round(words.draw.random() * 5, 2), "genre": "news"}


@shape("sentence_similarity", "triplets.jsonl")
def anchor_positive_negative(words, index):
    return {"anchor": words(), "positive": words(), "negative": words()}


@shape("sentence_similarity", "retrieval.jsonl")
def queries_with_passages(words, index):
    return {"query": words() + "?", "pos": [words(3)], "neg": [words(3), words(2)]}


@shape("translation", "corpus.csv")
def two_languages(words, index):
    return {"english": words(), "german": words.german()}


@shape("translation", "opus.jsonl")
def translations_within_a_column(words, index):
    return {"id": str(index), "translation": {"en": words(), "de": words.german()}}


@shape("text_to_text", "news.csv")
def articles_and_highlights(words, index):
    return {"id": f"f00{index}", "article": words(12), "highlights": words(2)}


# ---- tags


CONLL = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n. . O O\n\n"


@written("token_classification")
def conll_file(folder):
    (folder / "ner.conll").write_text("-DOCSTART- -X- O O\n\n" + CONLL * 20)
    return folder / "ner.conll"


@written("token_classification")
def conll_in_text_files(folder):
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("-DOCSTART- -X- O O\n\n" + CONLL * 20)
    return folder


@shape("token_classification", "wnut.jsonl")
def words_with_tags(words, index):
    tokens = words().split()
    tags = ["B-THING" if word in ("printer", "phone", "bridge") else "O" for word in tokens]
    return {"id": str(index), "tokens": tokens, "ner_tags": [int(tag != "O") for tag in tags], "ner_labels": tags}


@shape("token_classification", "ner.csv")
def tags_as_lists_in_a_table(words, index):
    tokens = words().split()
    return {"sentence": " ".join(tokens), "words": tokens, "pos": ["NN" if len(word) > 4 else "X" for word in tokens]}


@shape("token_classification", "ner_dataset.csv", 240)
def a_word_in_each_row(words, index):
    number, place = divmod(index, 6)
    sentence = {"Sentence #": "" if place else f"Sentence: {number + 1}", "Word": words.one("London", "calls", "Anna")}
    return sentence | {"POS": ("NNP", "VBZ", ".")[place % 3], "Tag": ("B-geo", "O", "O")[place % 3]}


@shape("token_classification", "ner.parquet", 240)
def a_word_and_its_sentence_in_each_row(words, index):
    word, tag = words.one(("Paris", "B-geo"), ("sleeps", "O"), ("Anna", "B-per"), ("Smith", "I-per"))
    return {"tag": tag, "sentence_id": index // 6, "word": word}


# ---- questions


def context_of(words):
    context = words(5)
    answer = context.split(". ")[2][:12].strip()
    return context, answer


@shape("question_answering", "squad.jsonl")
def squad_as_lines(words, index):
    context, answer = context_of(words)
    answers = {"text": [answer], "answer_start": [context.index(answer)]}
    return {"id": f"57{index}", "title": "A_B", "context": context, "question": words() + "?", "answers": answers}


@written("question_answering")
def squad_as_published(folder):
    words, articles = Words(), []
    for number in range(12):
        context, answer = context_of(words)
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        asked = [{"id": f"{number}-{i}", "question": words() + "?", "answers": answers} for i in range(4)]
        articles.append({"title": f"T{number}", "paragraphs": [{"context": context, "qas": asked}]})
    (folder / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    return folder / "dev-v1.1.json"


@shape("multiple_choice", "commonsense.jsonl")
def choices_with_letters(words, index):
    options = {"label": ["A", "B", "C"], "text": [words(), words(), words()]}
    return {"id": f"a{index}", "question": words() + "?", "choices": options, "answerKey": words.one("A", "B", "C")}


@shape("multiple_choice", "arc.jsonl")
def texts_of_choices_before_their_letters(words, index):
    options = {"text": [words() for _ in range(4)], "label": list("ABCD")}
    return {"id": f"M{index}", "question": words() + "?", "choices": options, "answerKey": words.one(*"ABCD")}


@shape("multiple_choice", "swag.csv")
def endings_in_columns(words, index):
    endings = {f"ending{number}": words() for number in range(4)}
    return {"": index, "video-id": f"anetv_{index}", "sent1": words(), "sent2": "Then"} | endings | {"label": index % 4}


@shape("multiple_choice", "exam.csv")
def exam_with_columns_of_letters(words, index):
    return {"Question": words() + "?"} | {name: words()[:20] for name in "ABCD"} | {"Answer": "ABCD"[index % 4]}


# ---- chats


@shape("instruction_tuning", "gsm8k.jsonl")
def questions_and_worked_answers(words, index):
    return {
        "question": words(2) + " How many?",
        "answer": f"{words()} {index}+1=<<{index}+1>>{index + 1}\n#### {index + 1}",
    }


@shape("instruction_tuning", "openai.jsonl")
def messages_of_openai(words, index):
    turns = [{"role": "user", "content": words()}, {"role": "assistant", "content": words(2)}]
    return {"messages": [{"role": "system", "content": "Be kind."}, *turns]}


@shape("instruction_tuning", "tools.jsonl")
def messages_that_call_tools(words, index):
    function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    call = {"name": "weather", "arguments": json.dumps({"city": words.one("Paris", "Berlin")})}
    turns = [
        {"role": "user", "content": words()},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": words()},
    ]
    return {"messages": turns, "tools": [{"type": "function", "function": function}]}


@shape("instruction_tuning", "sharegpt.json")
def conversations_of_sharegpt(words, index):
    turns = [{"from": "human", "value": words()}, {"from": "gpt", "value": words(2)}]
    return {"id": f"id_{index}", "conversations": turns * 2}


@shape("instruction_tuning", "alpaca.json")
def instructions_with_inputs(words, index):
    return {"instruction": words(), "input": words.one("", words()), "output": words(2)}


@shape("instruction_tuning", "completions.jsonl")
def prompts_and_completions(words, index):
    return {"prompt": words(), "completion": words(2)}


@shape("preference", "dpo.jsonl")
def chosen_and_rejected(words, index):
    return {"prompt": words(), "chosen": words(), "rejected": words()}


@shape("preference", "ultrafeedback.jsonl")
def preferred_conversations(words, index):
    prompt = words()
    asked = {"role": "user", "content": prompt}
    chosen, rejected = ([asked, {"role": "assistant", "content": words()}] for _ in range(2))
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "score_chosen": 8.5, "score_rejected": 4.0}


# ---- texts alone


@written("causal")
def one_long_text(folder):
    (folder / "book.txt").write_text("\n\n".join(Words(index)(6) for index in range(80)))
    return folder / "book.txt"


@written("causal")
def folder_of_texts(folder):
    for index in range(40):
        (folder / f"chapter{index:02}.txt").write_text(Words(index)(12))
    return folder


@shape("causal", "crawl.jsonl", 100)
def texts_with_addresses(words, index):
    return {"text": words(15), "timestamp": f"2019-04-2{index % 10}T12:57:54Z", "url": f"https://a{index}.org/b/c.html"}


# ---- images


def write_image(path: Path, index: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40 + index % 3, 36), (index * 5 % 256, 90, 10)).save(path)


@written("image_classification")
def folder_of_photos_by_class(folder):
    for index in range(40):
        write_image(folder / ("cat", "dog")[index % 2] / f"{index}.jpg", index)
    (folder / "Thumbs.db").write_bytes(b"x")
    return folder


@shape("image_classification", "photos.parquet")
def images_as_bytes(words, index):
    from PIL import Image

    encoded = io.BytesIO()
    Image.new("RGB", (40, 36), (index * 4, 90, 10)).save(encoded, "PNG")
    return {"image": encoded.getvalue(), "label": index % 2}


@written("image_classification")
def photos_in_train_and_test(folder):
    for index in range(60):
        write_image(folder / ("train", "test")[index % 3 == 2] / ("cat", "dog")[index % 2] / f"{index}.png", index)
    return folder


@written("image_classification")
def table_of_photos(folder):
    rows = [{"file_name": f"img/{index}.png", "label": ("a", "b")[index % 2]} for index in range(40)]
    for index, row in enumerate(rows):
        write_image(folder / row["file_name"], index)
    (folder / "labels.csv").write_text(as_csv(rows))
    return folder / "labels.csv"
