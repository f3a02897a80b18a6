"""What clients write of their requests, in each of its forms."""

import json

import pytest

from kanalyze.errors import DamagedReportError, UnreadableReportError
from kanalyze.readers.request_log import read_requests

#: Two requests (ns): name, arrival, first token, end, tokens of prompt and answer.
TWO = [("a", 1_500_000_000, 1_700_000_000, 2_500_000_000, 100, 5), ("b", 2_000_000_000, None, 2_250_000_000, 7, None)]


def read(tmp_path, text):
    (tmp_path / "log").write_text(text)
    return read_requests(tmp_path / "log").rows()


def test_rows_of_csv_and_of_json_lines_with_any_of_their_names(tmp_path):
    head = "request,arrival,first_token,end,prompt_tokens,output_tokens\n"
    assert read(tmp_path, head + "b, 2.0,,2.25,7,\na,1.5,1.7,2.5,100,5\n") == TWO
    assert read(tmp_path, " Request,arrival,First token,end,prompt-len\na,1.5,1.7,2.5,100\n") == [(*TWO[0][:5], None)]
    assert read(tmp_path, "id,start,ttft,end,prompt,output\na,1.5,1.7,2.5,100,5\n")[0][2] is None  # it is a time of day
    assert read(tmp_path, "id,start_time,ttft,latency,input_len,output_len\na,1.5,0.2,1.0,100,5\n") == TWO[:1]
    lines = [
        {"step": 1, "start": 1.0, "end": 2.0},
        {"request": "a", "arrival": 1.5, "first": 1.7, "end": 2.5, "prompt": 100, "wanted": 5, "text": ["x"]},
        {"request_id": "b", "arrival_time": 2, "e2el": 0.25, "prompt": "Say hello", "prompt_len": 7},
    ]
    assert read(tmp_path, "\n".join(map(json.dumps, lines))) == TWO
    assert read(tmp_path, json.dumps(lines)) == TWO


@pytest.mark.parametrize(("factor", "ns"), [(1, 1), (1e3, 1), (1e6, 1), (1e9, 1)])
def test_times_of_the_epoch_are_of_the_unit_that_their_size_tells(tmp_path, factor, ns):
    seconds = 1_795_706_005
    text = f"request,arrival,end\na,{seconds * factor:.0f},{(seconds + 2) * factor:.0f}\n"
    assert read(tmp_path, text) == [("a", seconds * 10**9 * ns, None, (seconds + 2) * 10**9 * ns, None, None)][:1]


def test_times_of_iso_8601_are_of_the_epoch_if_they_say_a_zone(tmp_path):
    head, row = "request,arrival,end\na,", "2026-11-26 18:42:{}{zone}".format
    for zone, hours in (("Z", 0), ("+02:00", 2)):
        ((_, arrival, _, end, *_),) = read(tmp_path, f"{head}{row('24.5', zone=zone)},{row('26', zone=zone)}\n")
        assert arrival == pytest.approx((1_795_718_544.5 - 3600 * hours) * 1e9, abs=300)
        assert end - arrival == pytest.approx(1.5e9, abs=300)
    with pytest.raises(DamagedReportError, match="in numbers or ISO 8601 with a zone"):
        read(tmp_path, f"{head}{row('24', zone='')},{row('26', zone='')}\n")


def test_results_of_vllm_s_benchmark_and_of_sglang_s_which_say_no_start(tmp_path):
    run = {"ttfts": [0.2, 0.25], "itls": [[0.3, 0.5], []], "input_lens": [100, 7], "output_lens": [5, 1]}
    whole = run | {"start_times": [1.5, 2.0], "model": "m", "errors": ["", ""]}
    numbered = [("1", *TWO[0][1:]), ("2", 2_000_000_000, 2_250_000_000, 2_250_000_000, 7, 1)]
    assert read(tmp_path, json.dumps(whole)) == numbered
    assert read(tmp_path, json.dumps({"ttfts": []}) + "\n" + json.dumps(whole)) == numbered
    with pytest.raises(DamagedReportError, match="no start_times: of each request"):
        read(tmp_path, json.dumps(run))


def test_requests_that_failed_have_no_first_token_and_are_left_out(tmp_path):
    run = {"start_times": [1.5, 2.0], "ttfts": [0.0, 0.25], "itls": [[], []], "input_lens": [9, 7]}
    whole = run | {"output_lens": [0, 1], "errors": ["refused", ""]}
    assert read(tmp_path, json.dumps(whole)) == [("2", 2_000_000_000, 2_250_000_000, 2_250_000_000, 7, 1)]


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "1e300", "9e9999"])
def test_times_and_lengths_that_are_no_numbers_are_unknown(tmp_path, bad):
    head = "request,arrival,first_token,end,prompt_tokens,output_tokens\n"
    rows = f"x,{bad},1,2,3,4\ny,1,1.5,{bad},3,4\na,1.5,1.7,2.5,100,5\nb,2,{bad},2.25,7,{bad}\n"
    assert read(tmp_path, head + rows) == TWO
    assert read(tmp_path, head + "x,3,1,2,3,4\na,1.5,1.7,2.5,100,5\n") == TWO[:1]


DAMAGED = [
    {"start_times": [1.0], "ttfts": [None], "itls": [[0.1]], "input_lens": [1], "output_lens": [2]},
    {"start_times": 3, "ttfts": [0.1], "itls": [[0.1]], "input_lens": [1], "output_lens": [2]},
    {"start_times": [1.0], "ttfts": [0.1], "itls": [3], "input_lens": [1], "output_lens": [2]},
]


@pytest.mark.parametrize("text", [*map(json.dumps, DAMAGED), "[" * 100_000])
def test_lists_of_other_things_are_damaged(tmp_path, text):
    with pytest.raises(DamagedReportError, match="no log of requests"):
        read(tmp_path, text)


def test_an_unknown_column_is_named_where_the_first_token_may_be_in_it(tmp_path):
    with pytest.raises(DamagedReportError, match=r"no column is of the first token, and unknown are: token_1\."):
        read(tmp_path, "request,arrival,token 1,end\na,1.5,1.7,2.5\n")


@pytest.mark.parametrize("text", ["", "{", "a,b\n1,2\n", "[1, 2]", '{"request": 1}', "request,arrival,end\na,x,y\n"])
def test_what_is_no_log_is_said_to_be_none(tmp_path, text):
    with pytest.raises(DamagedReportError, match="log: no "):
        read(tmp_path, text)
    with pytest.raises(UnreadableReportError):
        read_requests(tmp_path)
