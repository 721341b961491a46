"""BERT (Section 3): embeddings, a post-norm Transformer encoder, the pooler. Shapes: see batch.py."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.base.errors import ModelError
from bertie.model.attention import packed_attention
from bertie.model.batch import PackedBatch
from bertie.model.bilstm import BiLSTM
from bertie.model.config import BertConfig
from bertie.model.dropout import Dropout

# Few enough to cost nothing, many enough that shapes come again; wider models are better off without
# (docs/decisions/processors.md).
FILLED_ROWS, WIDEST_FILLED = 32, 512


class BertModel(nn.Module):
    """A packed batch -> one vector for each token, and one for each sequence.

    Args:
        config: the network's shape.
        pooler: whether there is one; heads on single tokens need none.

    With `gradient_checkpointing` set, training keeps only what goes into each layer, and computes the layer
    once more in the backward pass (Chen et al., arXiv:1604.06174): less memory, the same gradients.

    With `config.is_decoder` it reads from left to right: what it says of a token is a function of that token
    and those before it (Section 5.1). `bilstm` is put on top by `add_bilstm`.
    """

    bilstm: BiLSTM | None

    def __init__(self, config: BertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.is_decoder = config.is_decoder
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.bilstm = None
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None

    def forward(self, batch: PackedBatch, tokens: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Encode.

        Args:
            batch: T tokens in N sequences.
            tokens: the places of those whose `sequence_output` is wanted, (M,); by default all. The last
                layer transforms these and what is pooled alone: nothing reads what it would make of others.

        Returns:
            `sequence_output` (T, H) or (M, H), and `pooled_output` (N, H) where there is a pooler.
        """
        # From left to right [CLS] has seen nothing, the last [SEP] everything; OpenAI GPT's classifiers too
        # read the last token.
        pooled = batch.cu_seqlens[1:] - 1 if self.is_decoder else batch.cu_seqlens[:-1]  # (N,)
        read = tokens
        if tokens is not None and self.pooler is not None:
            read = torch.cat([pooled, tokens])  # (N + M,)
        hidden = self.embeddings(batch)  # (T, H)
        H = hidden.shape[1]
        hidden = pad_rows(hidden, H)
        for layer in self.layers:
            read_here = read if layer is self.layers[-1] and self.bilstm is None else None
            arguments = (hidden, batch, None if read_here is None else pad_rows(read_here, H))
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, *arguments, use_reentrant=False)  # (T, H)
            else:
                hidden = layer(*arguments)  # (T, H), after the last layer what is read
        if self.bilstm is not None:
            hidden = self.bilstm(hidden[: batch.num_tokens], batch)  # (T, H)
            hidden = hidden if read is None else hidden.index_select(0, read)
        hidden = hidden[: batch.num_tokens if read is None else len(read)]  # without the fillers
        if self.pooler is None:
            return hidden, None
        if tokens is None:
            return hidden, torch.tanh(self.pooler(hidden.index_select(0, pooled)))
        pooled_output, sequence_output = torch.split(hidden, [len(pooled), len(tokens)])
        return sequence_output, torch.tanh(self.pooler(pooled_output))

    def pooled(self, batch: PackedBatch) -> Tensor:
        """`pooled_output` (N, H) alone."""
        _, pooled_output = self(batch, batch.cu_seqlens[:0])
        return pooled_output  # type: ignore[no-any-return]

    def layer_outputs(self, batch: PackedBatch) -> Iterator[Tensor]:
        """The output of the embeddings, then of each layer: L + 1 times (T, H), computed when asked for."""
        hidden = self.embeddings(batch)
        yield hidden
        for layer in self.layers:
            hidden = layer(hidden, batch)
            yield hidden


class Embeddings(nn.Module):
    """The sum of token, segment and position embeddings (Section 3, Figure 2), normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: PackedBatch) -> Tensor:
        if self.token_type_embeddings.num_embeddings == 1 and batch.token_type_ids.any():
            raise ModelError("a model with type_vocab_size 1 reads single texts, no pairs; give it one text")
        embedded = (
            self.word_embeddings(batch.input_ids)
            + self.position_embeddings(batch.position_ids)
            + self.token_type_embeddings(batch.token_type_ids)
        )  # (T, H)
        return self.dropout(self.norm(embedded))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Self-attention and feed-forward, each with a residual connection and a norm after it."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_decoder = config.is_decoder
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.attention_output = nn.Linear(config.hidden_size, config.hidden_size)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.activation = activation(config)

    def forward(self, hidden: Tensor, batch: PackedBatch, read: Tensor | None = None) -> Tensor:
        attention_dropout = self.attention_dropout if self.training else 0.0
        attended = packed_attention(
            self.qkv(hidden), batch, self.num_heads, attention_dropout, self.is_decoder
        )  # (T, H)
        if read is not None:  # from here on a token needs no other
            attended, hidden = attended.index_select(0, read), hidden.index_select(0, read)
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(attended)))  # (T, H)
        widened = self.activation(self.intermediate(hidden))  # (T, 4H)
        return self.output_norm(hidden + self.dropout(self.output(widened)))  # type: ignore[no-any-return]


def pad_rows(rows: Tensor, hidden_size: int) -> Tensor:
    """These rows, and zeros behind them up to a multiple of FILLED_ROWS, where a CPU computes in bfloat16.

    There a product is compiled for each new number of rows, which small models feel. Nothing reads what
    becomes of the fillers.
    """
    if hidden_size > WIDEST_FILLED or rows.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return rows
    return F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, -len(rows) % FILLED_ROWS])


def add_bilstm(bert: BertModel, config: BertConfig) -> None:
    """Put a BiLSTM of random weights between the encoder and the head (Section 5.1, Table 5's last row).

    The paper does not say its size: here one layer, as wide in both directions together as the encoder, so
    that the heads are what they are without it.
    """
    bert.bilstm = BiLSTM(config.hidden_size, config.hidden_size // 2, num_layers=1, dropout=0.0)


def activation(config: BertConfig) -> nn.GELU:
    """The configured GELU (Appendix A.2): the exact one, or its tanh approximation."""
    return nn.GELU(approximate="none" if config.hidden_act == "gelu" else "tanh")


def initialize(module: nn.Module, config: BertConfig) -> None:
    """Weights from a normal distribution cut at two standard deviations, biases zero (modeling.py:375).

    The standard deviation is that before the cut, as in TensorFlow's truncated_normal_initializer.
    """
    for name, part in module.named_modules():
        deviation = config.initializer_range
        if name.endswith("position_embeddings") and config.position_initializer_range is not None:
            deviation = config.position_initializer_range
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
