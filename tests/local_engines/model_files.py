"""Directories of models for the tests: the real MiniLM files, small random models, and broken ones."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

Config = dict[str, Any]

BASE: Config = {
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
TINY: Config = BASE | {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
#: Wide enough that a 512-token input keeps one core busy for a good part of a second; never sleeps.
SLOW: Config = BASE | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
    "vocab_size": 8000,
}


def _shapes(config: Config) -> dict[str, tuple[int, ...]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    linears = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (wide, hidden),
        "output.dense": (hidden, wide),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in linears.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (hidden,)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (hidden,)
    if "id2label" in config:
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
        shapes["bert.pooler.dense.weight"] = (hidden, hidden)
        shapes["bert.pooler.dense.bias"] = (hidden,)
        shapes["classifier.weight"] = (len(config["id2label"]), hidden)
        shapes["classifier.bias"] = (len(config["id2label"]),)
    return shapes


def write_random_weights(path: Path, config: Config) -> None:
    """A safetensors file of fixed random weights for a BERT of this config."""
    generator = np.random.default_rng(7)
    header: dict[str, object] = {}
    chunks: list[bytes] = []
    offset = 0
    for name, shape in _shapes(config).items():
        values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        if name.endswith("LayerNorm.weight"):
            values += 1
        data = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        chunks.append(data)
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.writelines(chunks)


def build(directory: Path, minilm: Path) -> None:
    """Fills `directory` with the models that the recording's commands name, each in a folder of that name."""
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    limit_256 = {"max_seq_length": 256}

    def model(name: str, config: Config, **others: object) -> Path:
        target = directory / name
        (target / "1_Pooling").mkdir(parents=True)
        (target / "config.json").write_text(json.dumps(config))
        (target / "tokenizer.json").symlink_to(minilm / "tokenizer.json")
        for file, content in others.items():
            (target / f"{file}.json").write_text(json.dumps(content))
        write_random_weights(target / "model.safetensors", config)
        (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return target

    (directory / "all-minilm-l6-v2").symlink_to(minilm)
    classification = {"architectures": ["BertForSequenceClassification"]}
    one_label = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    two_labels = {"id2label": {"0": "neg", "1": "pos"}, "label2id": {"neg": 0, "pos": 1}}
    model("tiny-reranker", TINY | classification | one_label)
    model("tiny-classifier", TINY | classification | two_labels)
    model("embed-small-vocab", TINY | {"vocab_size": 2000})
    model("embed-slow", SLOW)
    model("reranker-no-id2label", TINY | classification)
    (model("no-weights", TINY) / "model.safetensors").unlink()
    (model("no-tokenizer", TINY, sentence_bert_config=limit_256) / "tokenizer.json").unlink()
    (model("no-config", TINY, sentence_bert_config=limit_256) / "config.json").unlink()
    (model("no-pooling", TINY, sentence_bert_config=limit_256) / "1_Pooling" / "config.json").unlink()
    model("st-too-long", TINY, sentence_bert_config={"max_seq_length": 1024})
    model("unsupported", TINY | {"model_type": "t5"}, sentence_bert_config=limit_256)


def build_small_minilm(directory: Path, minilm: Path) -> None:
    """`all-minilm-l6-v2` with all of its files but the weights: for starts whose vectors nobody looks at."""
    target = directory / "all-minilm-l6-v2"
    target.mkdir(parents=True)
    for name in ("1_Pooling", "tokenizer.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (target / name).symlink_to(minilm / name)
    (target / "config.json").write_text(json.dumps(TINY))
    write_random_weights(target / "model.safetensors", TINY)
