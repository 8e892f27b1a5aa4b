"""Capsule heads in models of transformers: found, trained by the model's own loss, saved, and loaded again."""

import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import load_file, save_file

from cappronet import CapsuleProjection, replace_head
from cappronet.heads import load_pretrained

transformers = pytest.importorskip("transformers", minversion="5")

WORDS = {"vocab_size": 50, "max_position_embeddings": 40, "pad_token_id": 0}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
IMAGES = {"image_size": 16, "patch_size": 8}
MODELS = {
    "BertForSequenceClassification": ("classifier", SIZES | WORDS),
    "RobertaForSequenceClassification": ("classifier.out_proj", SIZES | WORDS),
    "DistilBertForSequenceClassification": (
        "classifier",
        {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50},
    ),
    "LlamaForSequenceClassification": ("score", SIZES | WORDS),
    "ViTForImageClassification": ("classifier", SIZES | IMAGES),
    "ConvNextForImageClassification": ("classifier", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
}
UNIT = {"normalize": True, "scale": "learned"}


def model_of(name, **options):
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    return model_class(model_class.config_class(**{"num_labels": 3} | MODELS[name][1] | options))


def batch_of(name, n=6):
    if "Image" in name:
        return {"pixel_values": torch.randn(n, 3, 16, 16), "labels": torch.arange(n) % 3}
    words = torch.randint(3, 50, (n, 7))
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.arange(n) % 3}


def assert_same_state(model, other):
    state, expected = model.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for key in state:
        assert state[key].dtype == expected[key].dtype, key
        assert torch.equal(state[key], expected[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_the_classifier_is_found_and_trains_with_the_loss_of_the_model(name):
    model = model_of(name)
    assert replace_head(model, 4, **UNIT) is model
    head = model.get_submodule(MODELS[name][0])
    assert isinstance(head, CapsuleProjection)
    assert head.weight.shape == (3, 4, head.in_features)

    batch, model = batch_of(name), model.eval()  # no dropout
    first = model(**batch)
    assert first.logits.shape == (6, 3)
    expected = torch.nn.functional.cross_entropy(first.logits, batch["labels"])
    torch.testing.assert_close(first.loss, expected)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    assert loss < 0.8 * first.loss


def test_a_projection_of_keys_as_wide_as_the_classifier_is_no_rival():
    model = model_of("LlamaForSequenceClassification", num_key_value_heads=1, num_labels=8)
    assert model.model.layers[0].self_attn.k_proj.out_features == 8
    assert isinstance(replace_head(model, 4).score, CapsuleProjection)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_again(name, tmp_path):
    model = replace_head(model_of(name), 4, num_classes=5, **UNIT).eval()
    with torch.no_grad():
        model.get_submodule(MODELS[name][0]).scale.fill_(7)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded.num_labels == loaded.config.num_labels == 5
    assert repr(loaded) == repr(model)
    assert_same_state(loaded, model)

    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert json.loads((again / "config.json").read_text()) == json.loads((tmp_path / "config.json").read_text())
    batch = batch_of(name)
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).loss, model(**batch).loss)
    assert_same_state(load_pretrained(again, dtype=torch.bfloat16), model.to(torch.bfloat16))


@pytest.mark.parametrize("solver", ["hyperpower", "orthonormal"])
def test_other_solvers_are_loaded_again(solver, tmp_path):
    model = replace_head(model_of("ViTForImageClassification"), 4, solver=solver)
    model.train()(**batch_of("ViTForImageClassification"))  # estimates normalization matrices
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path)
    assert loaded.classifier.solver == solver
    assert_same_state(loaded, model)


def test_a_model_in_several_files_is_loaded_again(tmp_path):
    model = replace_head(model_of("BertForSequenceClassification"), 4).eval()
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_state(load_pretrained(tmp_path), model)


def test_the_recorded_heads_rebuild_a_model_by_hand(tmp_path):
    model = replace_head(model_of("BertForSequenceClassification"), 4, **UNIT)
    model.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    fresh = transformers.AutoModelForSequenceClassification.from_config(config)
    for head in config.capsule_heads:
        replace_head(fresh, **head)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(fresh.classifier.weight, model.classifier.weight)
    assert fresh.config.capsule_heads == model.config.capsule_heads


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory'")
def test_checkpoints_of_the_trainer_resume_and_load(tmp_path):
    pytest.importorskip("accelerate")
    batch = batch_of("BertForSequenceClassification")
    rows = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]

    def trained(checkpoint=None):
        model = replace_head(model_of("BertForSequenceClassification"), 4, **UNIT)
        options = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 6, "learning_rate": 0.01}
        quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
        arguments = transformers.TrainingArguments(tmp_path, **options, **quiet)
        transformers.Trainer(model, arguments, train_dataset=rows).train(resume_from_checkpoint=checkpoint)
        return model

    model = trained()
    checkpoint = tmp_path / "checkpoint-4"
    assert_same_state(load_pretrained(checkpoint), model)
    assert not torch.equal(load_pretrained(tmp_path / "checkpoint-2").classifier.weight, model.classifier.weight)
    assert_same_state(trained(checkpoint), model)  # no steps are left: it is what the Trainer has loaded


def test_both_classifiers_of_a_model_are_loaded_again(tmp_path):
    config = transformers.DeiTConfig(**SIZES, **IMAGES, num_labels=3)
    model = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    with pytest.raises(ValueError, match="cls_classifier, distillation_classifier; choose with name="):
        replace_head(model)
    replace_head(model, 2, name="cls_classifier")
    replace_head(model, 4, name="distillation_classifier")
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path)
    assert (loaded.cls_classifier.capsule_dim, loaded.distillation_classifier.capsule_dim) == (2, 4)
    assert_same_state(loaded, model)


def bert(**options):
    return model_of("BertForSequenceClassification", **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bert().bert,
            r"BertModel has no classifier for its 3 labels.*Linear\(in_features=16.*ForSequence.*name=",
        ),
        (
            lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **WORDS)),
            "BertForMaskedLM has no classifier for its 2 labels",
        ),
        (lambda: bert(num_labels=1), "regression, num_labels=1.*two or more classes"),
        (
            lambda: bert(problem_type="multi_label_classification"),
            "multi_label_classification, num_labels=3.*never negative",
        ),
    ],
)
def test_models_without_a_classifier_of_classes_are_refused_and_left_alone(make, message):
    model = make()
    before = list(model.modules())
    with pytest.raises(ValueError, match=message):
        replace_head(model, 4)
    assert list(model.modules()) == before
    assert not hasattr(model.config, "capsule_heads")


def test_a_layer_for_another_task_leaves_the_labels_alone():
    model = bert()
    replace_head(model, 4, num_classes=5, name="bert.pooler.dense")
    assert model.num_labels == model.config.num_labels == 3
    assert [head["name"] for head in model.config.capsule_heads] == ["bert.pooler.dense"]


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capsule_heads": None}, "lists no capsule_heads.*from_pretrained"),
        ({"capsule_heads": [4]}, "lists no capsule_heads"),
        ({"architectures": ["logging"]}, "architecture 'logging', which is no model of transformers"),
        ({"architectures": None}, "architecture 'none'"),
    ],
)
def test_configurations_that_do_not_say_what_to_load_are_refused(changes, message, tmp_path):
    replace_head(bert(), 4).save_pretrained(tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


def test_missing_weights_of_the_head_are_refused(tmp_path):
    replace_head(bert(), 4, **UNIT).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["classifier.scale"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks the weights classifier\.scale of its capsule head"):
        load_pretrained(tmp_path)
