"""No secret and no user name leaves: hostile environments, arguments and command lines."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from floatscope._attach import declared
from floatscope._attach.masking import MASK, is_secret, masked, masked_command, plain
from floatscope._sending import fitting

HOME = {"HOME": "/home/marie", "USER": "marie"}

# Each is a text with what must not be left of it.
SECRETS = [
    ("--api_key=4f5c1e9ab", "4f5c1e9ab"),
    ("--api-key 4f5c1e9ab", "4f5c1e9ab"),
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "abcdefghijklmnop"),
    ("hf_abcdefghijklmnopqrstuvwx", "abcdefghijklmnop"),
    ("https://marie:hunter2@repo.example/x.git", "hunter2"),
    ("https://marie:hun@ter2@repo.example/x", "ter2"),
    ("postgresql://trainer:s3cr3t@db/runs", "s3cr3t"),
    ("https://hooks.example/x?token=abc123&y=1", "abc123"),
    ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("sk-proj-abcdefghijklmnopqrstuvwxyz012345", "abcdefghijkl"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijkl"),
    ("github_pat_11ABCDEFG0abcdefghijkl_mnop", "abcdefghijkl"),
    ("glpat-abcdefghijklmnopqrst", "abcdefghijkl"),
    ("xoxb-123456789012-abcdefghijkl", "abcdefghijkl"),
    ("0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("Authorization: Bearer abcdef.ghijkl", "ghijkl"),
    ("curl -H 'Authorization: Basic bWFyaWU6eA=='", "bWFyaWU6eA"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ('{"wandb_api_key": "4f5c1e9ab", "lr": 0.1}', "4f5c1e9ab"),
    ("password: hunter2", "hunter2"),
    ("db.password='hunter2'", "hunter2"),
    ("dbPassword=hunter2", "hunter2"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
    ('PASSWORD="open, sesame now"', "sesame"),
    ("{'api_key': 'open sesame', 'x': 1}", "sesame"),
    (r'{"password": "open\" sesame"}', "sesame"),
    (r'"{\"password\": \"open sesame\"}"', "sesame"),
    ("--token 'open sesame'", "sesame"),
    ("--cmd '--password sesame'", "sesame"),
    ("args: 'token=sesame'", "sesame"),
    ("secret_keys: [open, sesame]", "sesame"),
    ("secrets:\n  - open\n  - sesame\n", "sesame"),
    ("db_pass=sesame", "sesame"),
    ("https://hooks.slack.com/services/T000/B000/opensesame", "sesame"),
    ("https://api.telegram.org/bot123456:opensesame/send", "sesame"),
    ("marie.curie@example.org", "marie"),
    ("/home/marie/runs/model.pt", "marie"),
    ("/home/pierre/runs/model.pt", "pierre"),
    ("/Users/pierre/runs/model.pt", "pierre"),
    ("C:\\Users\\pierre\\model.pt", "pierre"),
    ("/scratch/marie/model.pt", "marie"),
    ("--output=/scratch/marie", "marie"),
    ("rsync://host/~marie/x", "marie"),
    ("/root/.cache/x", "root"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[str(number) for number in range(len(SECRETS))])
def test_secrets_and_user_names_go(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in masked(text, HOME)
    assert secret not in json.dumps(plain({"note": [text]}, environment=HOME))


@pytest.mark.parametrize(
    "text",
    [
        "--max_tokens=4096 --lr 1e-4 --num_key_value_heads 8",
        "python -m torch.distributed.run --nproc-per-node 8 train.py",
        "meta-llama/Llama-3.1-8B-Instruct-finetuned-v2",
        "/data/models/Qwen3/qwen3-0.6b/model-00001-of-00002.safetensors",
        "cosine_with_min_lr, bf16, adamw_torch_fused",
        "https://huggingface.example/datasets/tiny",
        "tokenizer_name=qwen keyed=1 monkey=banana",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text, HOME) == text


def test_names_of_secrets() -> None:
    for name in ("HF_TOKEN", "apiKey", "api-key", "WANDB_API_KEY", "db_password", "MYSQL_PWD", "SLACK_WEBHOOK", "dsn"):
        assert is_secret(name, "x"), name
    for name in ("tokenizer", "max_tokens", "monkey", "keyed", "author", "passes", "secretary_of_state"):
        assert not is_secret(name, "x"), name
    assert not is_secret("pad_token_id", 0)
    assert not is_secret("eos_token", None)
    assert is_secret("password", 1234)


def test_command_lines() -> None:
    given = [
        "python",
        "train.py",
        "--api-key",
        "abc",
        "--hub_token=def",
        "api_key=ghi",
        "--lr",
        "0.1",
        "-p",
        "/home/x/y",
    ]
    assert masked_command(given, HOME) == [
        *(
            "python",
            "train.py",
            "--api-key",
            MASK,
            f"--hub_token={MASK}",
            f"api_key={MASK}",
            "--lr",
            "0.1",
            "-p",
            "~/y",
        ),
    ]


def test_a_value_of_several_words_goes_as_a_whole() -> None:
    given = ["--key=open sesame", "TOKEN=open sesame", "--secrets", "open", "sesame", "--lr", "0.1"]
    assert masked_command(given, HOME) == [f"--key={MASK}", f"TOKEN={MASK}", "--secrets", MASK, MASK, "--lr", "0.1"]


def test_settings_under_the_name_of_a_secret_keep_their_names_and_numbers() -> None:
    given = {"auth": {"user": "marie", "pass": "sesame", "tries": 3, "plain": False, "more": {"x": "sesame"}}}
    assert plain(given, environment=HOME) == {
        "auth": {"user": MASK, "pass": MASK, "tries": 3, "plain": False, "more": MASK}
    }


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "0",
        "-a",
        "a.",
        "eyJ",
        "a://",
        "://a?",
        "a@",
        "-----BEGIN ",
        "/home/",
        "a =",
        "ä",
        "token='",
        'key:"\\',
        "key: - a\n",
    ],
)
def test_long_texts_take_no_longer_than_they_are(text: str) -> None:
    # As long as a word of a command line may be. It was minutes, in which nothing else of the program runs.
    begun = time.process_time()
    masked(text * ((1 << 17) // len(text)), HOME)
    assert time.process_time() - begun < 30.0


def test_half_of_a_secret_does_not_show() -> None:
    # The first 8192 characters end inside of the last word, and nearly all before it is masked.
    text = f"token={'x' * 8170} hf_abcdefghijklmnopqrstuvwxyz"
    assert masked(text, HOME) == f"token={MASK}..."
    assert masked(f"https://a:{'x' * 8192}@host", HOME) == "..."
    assert masked(f"curl https://h?{'x' * 9000}", HOME) == "curl..."
    assert masked(f"{'word ' * 2000}https://a:xyz@host", HOME).startswith("word word")


def test_a_command_line_is_bounded() -> None:
    assert len(masked_command(["data/1.jpg"] * 100_000, HOME)) == 400
    long = masked_command(["\u044f" * 500] * 400, HOME)
    assert sum(len(word.encode()) for word in long) < 66 << 10
    assert long[-1] == "..."


def test_bytes_that_are_no_text_are_escaped() -> None:
    word = os.fsdecode(b"runs/\xff.pt")
    assert masked_command(["python", word], HOME) == ["python", "runs/\\udcff.pt"]
    assert plain({word: Path(word)}, environment=HOME) == {"runs/\\udcff.pt": "runs/\\udcff.pt"}


def test_what_would_be_too_much_for_a_server_is_left_out() -> None:
    told = {"model": "GPT", "arguments": {f"a{i}": "x" * 500 for i in range(600)}, "command": ["y" * 500] * 100}
    fits = fitting(told)
    assert fits == {
        "model": "GPT",
        "arguments": {"left out": "297 KiB, with which there would be too much"},
        "command": told["command"],
    }
    assert fitting(fits) == fits


def test_arguments_are_plain_and_bounded() -> None:
    told = plain(
        {"lr": 0.1, "hub_token": "x", "nested": {"deep": {"er": {"est": {"too": 1}}}}, "path": Path("/home/marie/a")},
        environment=HOME,
    )
    assert told == {"lr": 0.1, "hub_token": MASK, "nested": {"deep": {"er": {"est": "dict"}}}, "path": "~/a"}
    assert plain(object()) == "object"
    assert plain(1 << 80) == str(1 << 80)
    assert len(str(plain("word " * 1000))) <= 512
    many = plain(list(range(10_000)))
    assert isinstance(many, list)
    assert len(many) == 400


def test_what_is_declared_of_a_hostile_process(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "TORCH_HUB_PASSWORD": "opensesame",
        "NCCL_DEBUG_FILE": "/home/marie/nccl.log",
        "SLURM_JOB_USER": "marie",
        "SLURM_JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "MASTER_ADDR": "10.0.0.1",
        "PYTHONPATH": "/home/marie/lib",
        "FLOATSCOPE_TOKEN": "fs-verysecret",
        "FLOATSCOPE_ATTACH": "1",
        "FLOATSCOPE_SOURCE": '{"commit": "0123456789abcdef0123456789abcdef01234567", "changed_files": 2}',
        **HOME,
    }
    line = ["python", "/home/marie/train.py", "--api_key=topsecret", "--data", "https://marie:pw@host/data"]
    monkeypatch.setattr(sys, "orig_argv", line)
    model = nn.Linear(2, 2).to(torch.bfloat16)
    try:
        declared.declare("script", {"lr": 1e-4, "hub_token": "hubsecret", "output_dir": "/home/marie/out"})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            declared.declare_precision(model, None)
        told = declared.declared(secrets)
    finally:
        declared.forget()
    text = json.dumps(told)
    for secret in ("hf_abc", "wJalr", "opensesame", "marie", "c2ln", "verysecret", "topsecret", "hubsecret", ":pw@"):
        assert secret not in text, secret
    assert told["environment"] == {"MASTER_ADDR": "10.0.0.1", "NCCL_DEBUG_FILE": "~/nccl.log", "SLURM_JOB_USER": MASK}
    assert told["precision"] == {
        "parameters": {"bfloat16": 6},
        "autocast": "bfloat16",
        "loss_scaler": False,
        "tf32": False,
        "float32_matmul": "highest",
    }
    assert told["source"] == {"commit": "0123456789abcdef0123456789abcdef01234567", "changed_files": 2}
    assert re.match(r"\d+\.\d+", declared.versions()["torch"])


def test_nothing_is_declared_of_a_process_that_attaches_by_code() -> None:
    assert declared.declared({}) == {}
