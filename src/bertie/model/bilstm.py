"""A BiLSTM over packed tokens (Section 5.1), and the tagger of Section 5.3.

A step of an LSTM computes one token of every sequence. torch's PackedSequence therefore holds
the first tokens of all sequences, the longest sequence first, then all second tokens, and so on. Its
`batch_sizes` are called `step_sizes` here: the number of sequences that have a first token, a
second token, and so on. Other shapes: see bert.py.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertie.model.batch import PackedBatch
from bertie.model.dropout import Dropout


class BiLSTM(nn.Module):
    """A stack of `num_layers` LSTMs that read each sequence in both directions.

    The paper's "two-layer 768-dimensional BiLSTM" is taken as `hidden_size` 768 in each direction,
    as in `nn.LSTM` and in ELMo's taggers, with which the paper compares BERT.

    Args:
        input_size: size of the input vectors.
        hidden_size: size of one direction, in every layer.
        num_layers: number of layers.
        dropout: probability of zeroing an element of one layer's output before the next layer.
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
        self.dropout = Dropout(dropout)  # the same dropout, for _run_on_cpu

    def forward(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """Read the tokens of each sequence, (T, input_size), in both directions.

        Returns:
            float32 (T, 2 · hidden_size), the left-to-right direction first.
        """
        lengths, longest_first = batch.cu_seqlens.diff().sort(descending=True, stable=True)  # (N,)
        rank = longest_first.argsort()
        order = (batch.position_ids * len(batch) + rank[batch.sequence_ids]).argsort()  # (T,)
        step_sizes = batch.position_ids.bincount()  # (longest length,)
        # Full float32: a recurrence carries the rounding errors of one step through all others.
        without_tf32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.autocast(hidden.device.type, enabled=False), without_tf32:
            tokens = hidden.float().index_select(0, order)
            if hidden.device.type == "cpu":
                output = self._run_on_cpu(tokens, mirror_positions(step_sizes, lengths), step_sizes.tolist())
            else:
                output = self.lstm(PackedSequence(tokens, step_sizes.cpu()))[0].data
        return output.index_select(0, order.argsort())

    def _run_on_cpu(self, tokens: Tensor, mirror: Tensor, step_sizes: list[int]) -> Tensor:
        """Run the weights of `self.lstm`, with both directions in each step.

        At every step, the backward pass of torch's LSTM on a CPU writes zeros for all other steps,
        which takes most of its time (docs/decisions/processors.md). This code avoids that.

        Args:
            tokens: the data of a PackedSequence, (T, input_size).
            mirror: see `mirror_positions`.
            step_sizes: number of sequences that have a first token, a second token, and so on.

        Returns:
            The data of a PackedSequence, (T, 2 · hidden_size).
        """
        for layer in range(self.lstm.num_layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                torch.stack([getattr(self.lstm, f"{name}_l{layer}{suffix}") for suffix in ("", "_reverse")])
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            if layer > 0:
                tokens = self.dropout(tokens)
            both = torch.stack([tokens, tokens.index_select(0, mirror)])  # (2, T, input)
            gates = torch.baddbmm((bias_ih + bias_hh)[:, None], both, weight_ih.transpose(1, 2))
            forwards, backwards = run_lstm_steps(gates, weight_hh, step_sizes)  # (T, H) each
            tokens = torch.cat([forwards, backwards.index_select(0, mirror)], dim=1)  # (T, 2H)
        return tokens


def mirror_positions(step_sizes: Tensor, lengths: Tensor) -> Tensor:
    """Return the indices that reverse each sequence of a PackedSequence.

    Args:
        step_sizes: number of sequences that have a first token, a second token, and so on.
        lengths: lengths of the sequences, the longest first, (N,).

    Returns:
        Indices into the PackedSequence's data, int64 (T,).
    """
    starts = step_sizes.cumsum(0) - step_sizes
    position = torch.arange(len(step_sizes)).repeat_interleave(step_sizes)  # (T,)
    rank = torch.arange(len(position)) - starts[position]
    return starts[lengths[rank] - 1 - position] + rank


def run_lstm_steps(gates: Tensor, weight_hh: Tensor, step_sizes: list[int]) -> Tensor:
    """Run the steps of LSTMs over packed sequences (Hochreiter & Schmidhuber, 1997).

    Args:
        gates: contribution of the inputs to the gates, (directions, T, 4H), in the order of
            nn.LSTM: input, forget, cell, output.
        weight_hh: weights of the recurrence, (directions, 4H, H).
        step_sizes: number of sequences that have a first token, a second token, and so on.

    Returns:
        The outputs, (directions, T, H).
    """
    hidden = cell = gates.new_zeros(len(gates), step_sizes[0], weight_hh.shape[2])
    outputs = []
    # One split of the gates: its backward pass is one concatenation.
    for n, step_gates in zip(step_sizes, torch.split(gates, step_sizes, dim=1), strict=True):
        step = torch.baddbmm(step_gates, hidden[:, :n], weight_hh.transpose(1, 2))
        i, f, g, o = step.chunk(4, dim=2)  # (directions, n, H) each
        cell = f.sigmoid() * cell[:, :n] + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.cat(outputs, dim=1)


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: γ Σ softmax(s)ᵢ · layerᵢ.

    As in ELMo (Peters et al., arXiv:1802.05365, equation 1).
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """Mix (layers, T, H) into (T, H)."""
        return self.scale * torch.einsum("l,lth->th", self.scores.softmax(0), layers)


class FeatureTagger(nn.Module):
    """Section 5.3's tagger over frozen features: a BiLSTM, then a linear layer.

    Args:
        num_vectors: number of vectors per word; a `ScalarMix` mixes several into one.
        input_size: size of one vector.
        num_labels: number of tags.
        hidden_size: size of each direction of the BiLSTM.
        num_layers: number of layers of the BiLSTM.
        dropout: probability of zeroing an element of the BiLSTM's input and output, and between its
            layers.
    """

    def __init__(
        self,
        num_vectors: int,
        input_size: int,
        num_labels: int,
        *,
        hidden_size: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.mix = ScalarMix(num_vectors) if num_vectors > 1 else None
        self.dropout = Dropout(dropout)
        self.bilstm = BiLSTM(input_size, hidden_size, num_layers, dropout)
        self.classifier = nn.Linear(2 * hidden_size, num_labels)

    def forward(self, vectors: Tensor, batch: PackedBatch) -> Tensor:
        """Tag the words of some sentences; T counts words here.

        Args:
            vectors: vectors of the words, (num_vectors, T, input_size).
            batch: the sentences that the words form.

        Returns:
            Logits, (T, num_labels).
        """
        mixed = vectors[0] if self.mix is None else self.mix(vectors)
        hidden = self.bilstm(self.dropout(mixed), batch)
        return self.classifier(self.dropout(hidden))
