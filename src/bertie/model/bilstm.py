"""A bidirectional LSTM over packed tokens (Sections 5.1 and 5.3), and the tagger of Table 7 that has one."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertie.model.batch import PackedBatch
from bertie.model.dropout import Dropout


class BiLSTM(nn.Module):
    """LSTMs that read each sequence in both directions, `num_layers` of them one upon the other.

    The paper's "two-layer 768-dimensional BiLSTM" is taken as `hidden_size` 768 in each direction, which is
    how ELMo's taggers, that it is to be compared with, and `nn.LSTM` count.

    Args:
        input_size: the size of what goes in.
        hidden_size: of one direction, in every layer.
        num_layers: the number of layers.
        dropout: the probability with which what passes from one layer to the next is zeroed.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size,
            hidden_size,
            num_layers,
            dropout=dropout if num_layers > 1 else 0.0,
            bidirectional=True,
        )
        self.dropout = Dropout(dropout)  # the same, where the steps are our own

    def forward(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """(T, input_size) -> float32 (T, 2 · hidden_size), the direction from left to right first."""
        # As in a PackedSequence: the first tokens of all sequences, the longest first, then the second ones.
        lengths, longest_first = batch.cu_seqlens.diff().sort(descending=True, stable=True)  # (N,)
        rank = longest_first.argsort()
        order = (batch.position_ids * len(batch) + rank[batch.sequence_ids]).argsort()  # (T,)
        alive = batch.position_ids.bincount()  # how many sequences are so long
        # What is rounded in one step of a recurrence goes on through all the others.
        full = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.autocast(hidden.device.type, enabled=False), full:
            tokens = hidden.float().index_select(0, order)
            if hidden.device.type == "cpu":
                output = self._read(tokens, mirrored(alive, lengths), alive.tolist())
            else:
                output = self.lstm(PackedSequence(tokens, alive.cpu()))[0].data
        return output.index_select(0, order.argsort())

    def _read(self, tokens: Tensor, mirror: Tensor, alive: list[int]) -> Tensor:
        """What `self.lstm` makes of a PackedSequence; both directions go through each step together.

        On a CPU torch's backward pass writes at each step zeros for all the others: most of its time
        (docs/decisions/processors.md).
        """
        for layer in range(self.lstm.num_layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                torch.stack([getattr(self.lstm, f"{name}_l{layer}{way}") for way in ("", "_reverse")])
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            if layer > 0:
                tokens = self.dropout(tokens)
            both = torch.stack([tokens, tokens.index_select(0, mirror)])  # (2, T, input)
            gates = torch.baddbmm((bias_ih + bias_hh)[:, None], both, weight_ih.transpose(1, 2))
            there, back = recur(gates, weight_hh, alive)  # (T, H) each
            tokens = torch.cat([there, back.index_select(0, mirror)], dim=1)  # (T, 2H)
        return tokens


def mirrored(alive: Tensor, lengths: Tensor) -> Tensor:
    """Where a PackedSequence has each token when its sequences are read from right to left: int64 (T,).

    Args:
        alive: how many sequences have a first token, a second one, …
        lengths: of the sequences, the longest first.
    """
    starts = alive.cumsum(0) - alive
    position = torch.arange(len(alive)).repeat_interleave(alive)  # (T,)
    rank = torch.arange(len(position)) - starts[position]
    return starts[lengths[rank] - 1 - position] + rank


def recur(gates: Tensor, weight_hh: Tensor, alive: list[int]) -> Tensor:
    """An LSTM's steps over packed sequences (Hochreiter & Schmidhuber, 1997).

    Args:
        gates: what the inputs give to them, (directions, T, 4H); input, forget, cell, output as in nn.LSTM.
        weight_hh: (directions, 4H, H).
        alive: how many sequences have a first token, a second one, …

    Returns:
        The outputs, (directions, T, H).
    """
    hidden = cell = gates.new_zeros(len(gates), alive[0], weight_hh.shape[2])
    hiddens = []
    for n, of_step in zip(alive, torch.split(gates, alive, dim=1), strict=True):
        step = torch.baddbmm(of_step, hidden[:, :n], weight_hh.transpose(1, 2))
        i, f, g, o = step.chunk(4, dim=2)  # (directions, n, H) each
        cell = f.sigmoid() * cell[:, :n] + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        hiddens.append(hidden)
    return torch.cat(hiddens, dim=1)


class ScalarMix(nn.Module):
    """γ Σ softmax(s)ᵢ · layerᵢ, with γ and s learnt (ELMo: Peters et al., arXiv:1802.05365, equation 1)."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """(layers, T, H) -> (T, H)."""
        return self.scale * torch.einsum("l,lth->th", self.scores.softmax(0), layers)


class FeatureTagger(nn.Module):
    """Section 5.3's tagger over frozen vectors: a BiLSTM, then a linear layer.

    Args:
        layers: how many vectors a word has. Several are mixed by a weighted sum, whose weights are learnt.
        input_size: the size of one.
        num_labels: the number of tags.
        hidden_size: of each direction of the BiLSTM.
        num_layers: of the BiLSTM.
        dropout: on what goes into the BiLSTM, between its layers, and on what comes out.
    """

    def __init__(
        self,
        layers: int,
        input_size: int,
        num_labels: int,
        *,
        hidden_size: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.mix = ScalarMix(layers) if layers > 1 else None
        self.dropout = Dropout(dropout)
        self.bilstm = BiLSTM(input_size, hidden_size, num_layers, dropout)
        self.classifier = nn.Linear(2 * hidden_size, num_labels)

    def forward(self, vectors: Tensor, batch: PackedBatch) -> Tensor:
        """Vectors (layers, T, H) of the words, and the batch that says where each sentence begins.

        Returns:
            Logits (T, labels).
        """
        mixed = vectors[0] if self.mix is None else self.mix(vectors)
        hidden = self.bilstm(self.dropout(mixed), batch)
        return self.classifier(self.dropout(hidden))  # type: ignore[no-any-return]
