"""What LLaMA-Factory trains: a Qwen3 of two layers, a tokenizer, rows: ``python tiny_llamafactory.py FOLDER``.

Everything is made here, so that nothing is looked for on a network.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

STEPS = 6
CASES: dict[str, dict[str, object]] = {
    "lora": {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all", "bf16": True},
    "full": {"finetuning_type": "full", "gradient_accumulation_steps": 2, "bf16": False},
    "ranks": {"finetuning_type": "full", "bf16": False},
    "fp16": {"finetuning_type": "full", "fp16": True, "use_cpu": False},
    "pure": {"finetuning_type": "full", "pure_bf16": True},
    "freeze": {"finetuning_type": "freeze", "freeze_trainable_layers": 1, "bf16": False},
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    """As the module says."""
    folder = Path(sys.argv[1])
    rows = [{"instruction": f"Double {n}.", "input": "", "output": f"It is {2 * n}."} for n in range(24)]
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.train_from_iterator(
        [row["instruction"] + row["output"] for row in rows],
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    for case, options in CASES.items():
        for kind in ("alone", "watched"):
            chosen = {
                "model_name_or_path": str(folder / "model"),
                "stage": "sft",
                "do_train": True,
                "dataset_dir": str(folder),
                "dataset": "rows",
                "template": "qwen",
                "cutoff_len": 64,
                "output_dir": str(folder / f"{case}-{kind}"),
                "per_device_train_batch_size": 2,
                "learning_rate": 1e-3,
                "max_steps": STEPS,
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
                "use_cpu": True,
                "seed": 1,
            } | options
            (folder / f"{case}-{kind}.yaml").write_text(yaml.safe_dump(chosen))


if __name__ == "__main__":
    main()
