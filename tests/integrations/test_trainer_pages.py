"""Each page in docs/integrations shows a script as a diff. It runs before and after the change."""

import importlib
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from adapters import assert_no_hooks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asymtrain import UsageError, models

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
X, Y = torch.rand(16, 3, 32, 32), torch.arange(16) % 10


def mlp():
    return models.build("mlp", classes=10, seed=0)


def plain():
    return {"model": mlp(), "x": X[:2], "loader": DataLoader(TensorDataset(X, Y), batch_size=8), "epochs": 2}


def criterion():
    return plain()


def accelerate():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    return {**plain(), "accelerator": Accelerator(cpu=True), "criterion": nn.CrossEntropyLoss()}


def own_loss():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x):
            return x + nn.functional.gelu(self.mlp(self.norm(x.cumsum(1))))  # what came before, as attention has it

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20)
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, idx, targets=None):
            x = self.embed(idx)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            loss = None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            return logits, loss

    def get_batch(split):
        tokens = torch.randint(20, (4, 9))
        return tokens[:, :-1], tokens[:, 1:]

    return {"model": Writer(), "get_batch": get_batch, "steps": 2, "vocab_size": 20}


def timm():
    from timm.optim import create_optimizer_v2
    from timm.task import ClassificationTask

    sizes = {"device": torch.device("cpu"), "data_config": {"input_size": (3, 32, 32)}, "num_classes": 10, "lr": 0.01}
    script = {"create_optimizer_v2": create_optimizer_v2, "ClassificationTask": ClassificationTask}
    return {**plain(), **sizes, **script, "train_loss_fn": nn.CrossEntropyLoss(), "loader_train": [(X, Y)]}


def transformers():
    import transformers
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=100, num_labels=4, **sizes))
    rows = [{"input_ids": words, "labels": words.sum() % 4} for words in torch.randint(0, 100, (32, 12))]
    arguments = transformers.TrainingArguments(
        "out", max_steps=4, logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    return {"model": model, "rows": rows, "arguments": arguments, "Trainer": transformers.Trainer}


def lightning():
    import lightning as L

    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", "GPU available but not used.*")

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def training_step(self, batch, batch_idx):
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Classifier()
    quiet = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
             "enable_checkpointing": False, "log_every_n_steps": 1}  # fmt: skip
    return {**plain(), "module": module, "model": module.net, "L": L, "quiet": quiet}


def composer():
    warnings.simplefilter("ignore")
    from composer import Trainer
    from composer.models import ComposerClassifier

    model = ComposerClassifier(mlp(), num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters())
    quiet = {"device": "cpu", "progress_bar": False, "log_to_console": False}
    return {**plain(), "model": model, "optimizer": optimizer, "Trainer": Trainer, "quiet": quiet}


NEEDS = {"criterion": "torch", "own_loss": "torch"}


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.md")))
@pytest.mark.usefixtures("workplace")
def test_the_script_of_a_page_runs_before_and_after_the_change(page):
    with warnings.catch_warnings():
        try:
            warnings.simplefilter("ignore")
            importlib.import_module(NEEDS.get(page, page))
        except ImportError as error:
            pytest.skip(f"{page} does not import: {error}")
    (diff,) = re.findall(r"^```diff\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = diff.splitlines()
    assert {line[:2].strip() for line in lines} == {"", "+", "-"} or {line[:2].strip() for line in lines} == {"", "+"}
    assert sum(line.startswith("+ ") for line in lines) <= 8
    trained = []
    for dropped in "+-":
        torch.manual_seed(0)
        with warnings.catch_warnings():
            namespace = {"nn": nn, "torch": torch, **globals()[page]()}
            model = namespace["model"]
            keys = model.state_dict().keys()
            code = "\n".join(line[2:] for line in lines if not line.startswith(dropped))
            exec(compile(code, f"{page}.md", "exec"), namespace)
        assert model.state_dict().keys() == keys
        assert_no_hooks(model)
        trained.append(torch.cat([value.detach().flatten() for value in model.parameters()]))
    assert not torch.equal(*trained)  # the branches took part


@pytest.mark.parametrize("library", ["composer", "lightning", "timm", "transformers"])
def test_an_adapter_without_its_library_says_so(library, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"asymtrain.integrations.{library}", raising=False)
    with pytest.raises(UsageError, match=rf"(?i){library} does not import \("):
        importlib.import_module(f"asymtrain.integrations.{library}")
