"""Graph classification with PyTorch Geometric: batches of graphs of different sizes."""

import torch
import torch.nn.functional as F
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool


def graph(seed):
    generator = torch.Generator().manual_seed(seed)
    nodes = int(torch.randint(200, 1000, (1,), generator=generator))
    edges = torch.randint(0, nodes, (2, nodes * 8), generator=generator)
    return Data(x=torch.randn(nodes, 64, generator=generator), edge_index=edges, y=seed % 5)


class GIN(torch.nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for width in (inputs, hidden, hidden):
            mlp = Sequential(Linear(width, hidden), BatchNorm1d(hidden), ReLU(), Linear(hidden, hidden), ReLU())
            self.convs.append(GINConv(mlp))
        self.lin1, self.lin2 = Linear(hidden * 3, hidden), Linear(hidden, classes)

    def forward(self, x, edge_index, batch):
        pooled = []
        for conv in self.convs:
            x = conv(x, edge_index)
            pooled.append(global_add_pool(x, batch))
        x = F.dropout(self.lin1(torch.cat(pooled, dim=1)).relu(), p=0.5, training=self.training)
        return self.lin2(x)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(12345)
dataset = [graph(seed) for seed in range(160)]
train_loader = DataLoader(dataset[:128], batch_size=32, shuffle=False)
test_loader = DataLoader(dataset[128:], batch_size=32)
model = GIN(64, 256, 5).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    total = 0
    for data in train_loader:
        data = data.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        total += float(loss) * data.num_graphs
    return total / len(train_loader.dataset)


@torch.no_grad()
def test(loader):
    model.eval()
    correct = 0
    for data in loader:
        data = data.to(device)
        correct += int((model(data.x, data.edge_index, data.batch).argmax(dim=-1) == data.y).sum())
    return correct / len(loader.dataset)


for epoch in range(2):
    loss = train()
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test: {test(test_loader):.4f}")
