"""`corro.lightning`: training by Lightning's Trainer, under both names that Lightning has."""

import importlib.util
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import corro.torch as hvd

if importlib.util.find_spec("lightning") is None:
    pytest.skip("Lightning is not installed here (python/requirements/lightning.txt)", allow_module_level=True)
import torchmetrics

from corro.lightning import strategy_for

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]


def samples(count=48):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, x.sum(1, keepdim=True))


def module(package, **options):
    pl = importlib.import_module(package)

    class Module(pl.LightningModule):
        def __init__(self, seed, rate=0.05, norm=False):
            super().__init__()
            torch.manual_seed(seed)
            layers = [nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 1)]
            self.net = nn.Sequential(*layers)
            self.error = torchmetrics.MeanSquaredError()
            self.rate = rate
            self.norms = []

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.mse_loss(self.net(x), y)
            self.log("loss", loss, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            x, y = batch
            self.error(self.net(x), y)
            self.log("error", self.error, on_epoch=True)

        def on_before_optimizer_step(self, optimizer):
            self.norms.append(torch.cat([p.grad.flatten() for p in self.parameters()]).norm().item())

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]

    return Module(**options)


def trainer(package, tmp_path, **options):
    pl = importlib.import_module(package)
    return pl.Trainer(
        **{
            "strategy": strategy_for(package)(),
            "accelerator": "cpu",
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(tmp_path),
            **options,
        }
    )


def state(net):
    return {name: value.tolist() for name, value in net.state_dict().items()}


def assert_same_on_all_ranks(what):
    everyone = hvd.allgather_object(what)
    assert all(theirs == everyone[0] for theirs in everyone)


@pytest.fixture(autouse=True)
def _no_warnings_of_ours():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CORRO_CHECKS.*")
        warnings.filterwarnings("error", message=".*lr_scheduler.step.*")
        yield


@pytest.mark.parametrize("package", PACKAGES)
def test_training_equals_training_alone(package, tmp_path):
    # Batches of a rank are every n-th sample: together those of one process with a batch n times as large.
    net = module(package, seed=hvd.rank())
    fitting = trainer(package, tmp_path, gradient_clip_val=0.5)
    fitting.fit(net, DataLoader(samples(), batch_size=48 // hvd.size() // 4))
    assert (fitting.world_size, fitting.global_rank) == (hvd.size(), hvd.rank())
    assert_same_on_all_ranks(state(net))
    assert_same_on_all_ranks(net.norms)
    assert net.norms[0] > 0

    alone = module(package, seed=0)
    optimizer = torch.optim.SGD(alone.net.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    x, y = samples().tensors
    for epoch in range(2):
        order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch)) if _shuffles(fitting) else range(48)
        order = torch.as_tensor(list(order))
        for step in range(4):
            part = order[step * 12 : step * 12 + 12]
            optimizer.zero_grad()
            nn.functional.mse_loss(alone.net(x[part]), y[part]).backward()
            nn.utils.clip_grad_norm_(alone.net.parameters(), 0.5)
            optimizer.step()
        scheduler.step()
    for p, q in zip(net.net.parameters(), alone.net.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def _shuffles(fitting):
    return getattr(fitting.train_dataloader.sampler, "shuffle", False)


@pytest.mark.parametrize("package", PACKAGES)
def test_accumulated_batches_are_reduced_once(package, tmp_path, monkeypatch):
    net = module(package, seed=hvd.rank())
    fitting = trainer(package, tmp_path, accumulate_grad_batches=2, max_epochs=1)
    fitting.fit(net, DataLoader(samples(), batch_size=48 // hvd.size() // 4))
    assert len(net.norms) == 2
    assert_same_on_all_ranks(net.norms)
    assert_same_on_all_ranks(state(net))


def test_metrics_and_logs_are_those_of_all_ranks(tmp_path):
    package = PACKAGES[0]
    net = module(package, seed=0, rate=0.0)
    fitting = trainer(package, tmp_path, max_epochs=1)
    fitting.fit(net, DataLoader(samples(), batch_size=6), DataLoader(samples(), batch_size=5))
    logged = {name: value.item() for name, value in fitting.callback_metrics.items()}
    assert_same_on_all_ranks(logged)
    x, y = samples().tensors
    whole = nn.functional.mse_loss(net.net(x), y).item()
    assert logged["loss_epoch"] == pytest.approx(whole, rel=1e-4)
    assert logged["error"] == pytest.approx(whole, rel=1e-4)


def test_what_a_strategy_offers(tmp_path):
    package = PACKAGES[0]
    strategy = trainer(package, tmp_path, strategy="corro").strategy
    ranks = range(hvd.size())
    mine = torch.tensor([1.0 + hvd.rank()])
    assert strategy.reduce(mine).item() == pytest.approx(sum(1.0 + r for r in ranks) / hvd.size())
    assert strategy.reduce(mine, reduce_op="sum").item() == sum(1.0 + r for r in ranks)
    assert strategy.reduce(mine, reduce_op=torch.distributed.ReduceOp.MAX).item() == hvd.size()
    assert strategy.reduce("a word") == "a word"
    with pytest.raises(ValueError, match="cannot reduce by 'median'"):
        strategy.reduce(mine, reduce_op="median")
    assert strategy.all_gather(mine).flatten().tolist() == [1.0 + r for r in ranks]
    x = mine.clone().requires_grad_(True)
    (strategy.all_gather(x, sync_grads=True).flatten() * torch.arange(1.0, hvd.size() + 1)).sum().backward()
    assert x.grad.item() == hvd.size() * (hvd.rank() + 1)
    assert strategy.reduce_boolean_decision(True)
    assert not strategy.reduce_boolean_decision(hvd.rank() == 0)
    assert strategy.reduce_boolean_decision(hvd.rank() == 0, all=False)
    assert strategy.broadcast({"rank": hvd.rank()}, src=1) == {"rank": 1}
    strategy.barrier()
    assert strategy.is_global_zero == (hvd.rank() == 0)


def test_checkpoints_and_going_on(tmp_path):
    package = PACKAGES[0]
    folder = hvd.broadcast_object(str(tmp_path))
    net = module(package, seed=hvd.rank())
    first = trainer(package, folder, max_epochs=1)
    first.fit(net, DataLoader(samples(), batch_size=6))
    first.save_checkpoint(f"{folder}/one.ckpt")
    hvd.barrier()
    again = module(package, seed=10 + hvd.rank())
    second = trainer(package, folder, max_epochs=2)
    second.fit(again, DataLoader(samples(), batch_size=6), ckpt_path=f"{folder}/one.ckpt")
    assert second.current_epoch == 2
    assert_same_on_all_ranks(state(again))
    assert state(again) != state(net)


def test_batch_norms_are_synced(tmp_path):
    package = PACKAGES[0]
    net = module(package, seed=0, norm=True)
    trainer(package, tmp_path, sync_batchnorm=True, max_epochs=1).fit(net, DataLoader(samples(), batch_size=6))
    assert isinstance(net.net[1], hvd.SyncBatchNorm)
    assert net.net[1].running_mean.abs().sum() > 0
    assert_same_on_all_ranks(state(net))


def test_an_empty_metric_is_gathered_too():
    from corro.lightning._metrics import gather

    mine = torch.arange(float(hvd.rank() * 2)).reshape(hvd.rank(), 2)
    assert [part.shape[0] for part in gather(mine)] == list(range(hvd.size()))
    assert [part.shape for part in gather(torch.tensor(1.0))] == [torch.Size([])] * hvd.size()


def test_accelerate_for_one_process_and_corro_for_the_rest():
    """As docs/lightning.md shows it: ranks differ in weights and data, and are alike after each step."""
    accelerate = pytest.importorskip("accelerate")
    hvd.init()
    torch.manual_seed(hvd.rank())
    x = samples().tensors[0]
    model = nn.Linear(4, 1)
    accelerator = accelerate.Accelerator(cpu=True)
    mine = TensorDataset(x[hvd.rank() :: hvd.size()])
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(mine, 4)
    )
    assert accelerator.num_processes == 1
    optimizer.optimizer = hvd.DistributedOptimizer(optimizer.optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = state(model)
    for (batch,) in loader:
        optimizer.zero_grad()
        accelerator.backward((model(batch) - batch.sum(1, keepdim=True)).pow(2).mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert_same_on_all_ranks(state(model))
    assert state(model) != before
