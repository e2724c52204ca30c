"""Trains a small CNN on handwritten digits, on ranks that may be lost or added at any time.

    corro run -np 4 --min-np 2 python examples/torch/elastic_digits.py

Kill a rank (`kill -9`) while it trains: the others go on at once, and a new process takes its place. Or have a script say
which hosts there are, and change what it says:

    echo localhost:2 > /tmp/hosts
    corro run -np 2 --min-np 1 --max-np 4 --host-discovery-script examples/torch/discover_hosts.sh \\
        python examples/torch/elastic_digits.py &
    echo localhost:4 > /tmp/hosts

The steps that make it elastic are marked. The test accuracy is at least 97 %, whatever happens to the ranks.
"""

from __future__ import annotations

import argparse

import torch
from digits import Net, digits, test_accuracy
from torch.nn import functional as F
from torch.utils.data import DataLoader

import corro.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(1 + hvd.rank())
    torch.set_num_threads(1)
    train_set, test_set = digits()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    # 1: what must survive. It is sent to all ranks whenever they change, so nothing else needs to be broadcast.
    sampler = hvd.elastic.ElasticSampler(train_set)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    # 2: what is begun again whenever the ranks change.
    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        batch_size = max(options.batch_size // hvd.size(), 1)
        while state.epoch < options.epochs:
            loader = DataLoader(train_set, batch_size, sampler=state.sampler)
            loss = torch.tensor(0.0)
            for step, (images, labels) in enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                state.sampler.record_batch(step, batch_size)  # 3: these samples are done
                if step % 5 == 4:
                    state.commit()  # 4: from here we go on if a rank is lost; and here new ranks come in
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}   ranks {hvd.size()}   loss {loss.item():.3f}", flush=True)

    train(state)
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}   test accuracy {test_accuracy(model, test_set):.2%}", flush=True)


if __name__ == "__main__":
    main()
