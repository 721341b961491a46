"""BERT (Section 3): embeddings, a post-norm Transformer encoder, a pooler.

Shapes, here and in the rest of the model:
    T  tokens of the batch    N  sequences          M  masked positions    V  vocabulary size
    H  hidden size            A  attention heads    D  head size, H = A·D
    n  sequences in a bucket of attention           S  their padded length
    P  slots of all buckets, padding included       R  positions that a caller selects
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.base.errors import SettingsError
from bertie.model.attention import attention_probabilities, packed_attention, pooling_attention
from bertie.model.batch import PackedBatch
from bertie.model.bilstm import BiLSTM
from bertie.model.config import Activation, BertConfig
from bertie.model.cpu import can_fuse, can_fuse_inference, is_exact_gelu
from bertie.model.cpu_attention_kernels import can_attend
from bertie.model.cpu_inference import embed_and_normalize, linear_and_activation, linear_and_norm
from bertie.model.cpu_inference_attention import inference_attention
from bertie.model.cpu_training import linear, transform_attended
from bertie.model.dropout import Dropout
from bertie.model.gpu import can_transform_on_gpu
from bertie.model.layer_weights import LayerWeights
from bertie.model.rows import pad_rows
from bertie.model.sequences import check_segments


class BertModel(nn.Module):
    """Encode a packed batch: one vector for each token, and one for each sequence.

    With `gradient_checkpointing` set, training keeps only the input of each layer, and computes the
    layer again in the backward pass: less memory, the same gradients (Chen et al.,
    arXiv:1604.06174).

    With `config.is_decoder` attention is causal: the vector of a token depends only on this token
    and the tokens before it (Section 5.1). `add_bilstm` puts a BiLSTM on top.

    Args:
        config: the shape of the network.
        pooler: whether the model has a pooler; heads on tokens need none.
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

    def forward(
        self, batch: PackedBatch, positions: Tensor | None = None, words: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Encode a batch.

        Args:
            batch: T tokens in N sequences.
            positions: indices of the tokens to return in `sequence_output`, (R,); None for all.
            words: the word embeddings of the tokens, (T, H), if the caller has looked them up.

        Returns:
            `sequence_output`, (T, H) or (R, H), and `pooled_output`, (N, H), or None without a
            pooler.

        Raises:
            ModelError: the model has only one segment, and the batch has pairs of texts.
        """
        if self.pooler is None:
            return self.encode(batch, positions, words), None
        pooled = self._pooled_positions(batch)  # (N,)
        if positions is None:
            sequence_output = self.encode(batch, words=words)  # (T, H)
            to_pool = sequence_output.index_select(0, pooled)  # (N, H)
        else:
            hidden = self.encode(batch, torch.cat([pooled, positions]), words)  # (N + R, H)
            to_pool, sequence_output = torch.split(hidden, [len(pooled), len(positions)])
        return sequence_output, torch.tanh(self.pooler(to_pool))

    def encode(
        self,
        batch: PackedBatch,
        positions: Tensor | None = None,
        words: Tensor | None = None,
        one_per_sequence: bool = False,
    ) -> Tensor:
        """Run the embeddings, the layers and the BiLSTM, if there is one.

        Args:
            batch: T tokens in N sequences.
            positions: indices of the tokens to return, (R,); None for all.
            words: the word embeddings of the tokens, (T, H), if the caller has looked them up.
            one_per_sequence: whether `positions` has one token of each sequence, in their order, R = N.

        Returns:
            The vectors of the tokens at `positions`, (R, H), or of all tokens, (T, H). With
            `positions` and without a BiLSTM, the last layer transforms only these tokens after
            attention. With `one_per_sequence`, on a CPU, only these tokens attend.
        """
        hidden = self.embeddings(batch, words)  # (T, H)
        hidden = self._pad(hidden)
        *lower_layers, last_layer = self.layers
        for layer in lower_layers:
            hidden = self._run(layer, hidden, batch)  # (T, H)
        if self.bilstm is not None:
            hidden = self._run(last_layer, hidden, batch)  # (T, H)
            hidden = self.bilstm(hidden[: batch.num_tokens], batch)  # (T, H)
            return hidden if positions is None else hidden.index_select(0, positions)
        if positions is None:
            return self._run(last_layer, hidden, batch)[: batch.num_tokens]  # (T, H)
        padded = self._pad(positions)
        return self._run(last_layer, hidden, batch, padded, one_per_sequence)[: len(positions)]  # (R, H)

    def pool(self, batch: PackedBatch) -> Tensor:
        """Return `pooled_output`, (N, H), without computing `sequence_output`."""
        assert self.pooler is not None
        to_pool = self.encode(batch, self._pooled_positions(batch), one_per_sequence=True)  # (N, H)
        return torch.tanh(self.pooler(to_pool))

    def cls_vectors(self, batch: PackedBatch) -> Tensor:
        """Return the output of the last layer for [CLS], (N, H).

        The other tokens are not computed. The output of a BiLSTM is not included.
        """
        *_, hidden = islice(self.hidden_states(batch), len(self.layers))  # (T, H), the last layer's input
        positions = self._pad(batch.cu_seqlens[:-1])
        # In a causal model, [CLS] attends only to itself, not to the whole sequence.
        last: Tensor = self.layers[-1](hidden, batch, positions, one_per_sequence=not self.is_decoder)
        return last[: len(batch)]

    def hidden_states(self, batch: PackedBatch) -> Iterator[Tensor]:
        """Yield lazily the output of the embeddings and of each layer, (T, H).

        The output of a BiLSTM is not included.
        """
        hidden = self._pad(self.embeddings(batch))
        yield hidden[: batch.num_tokens]
        for layer in self.layers:
            hidden = layer(hidden, batch)
            yield hidden[: batch.num_tokens]

    def attention_probabilities(self, batch: PackedBatch) -> Tensor:
        """Return all layers' attention probabilities of one sequence, (L, A, T, T)."""
        probabilities = []
        for layer, hidden in zip(self.layers, self.hidden_states(batch), strict=False):
            assert isinstance(layer, Layer)
            qkv = layer.qkv(hidden)
            probabilities.append(attention_probabilities(qkv, layer.num_heads, layer.is_decoder))
        return torch.stack(probabilities)

    def _pooled_positions(self, batch: PackedBatch) -> Tensor:
        """Return the token of each sequence that is pooled, (N,)."""
        # In a causal model [CLS] attends only to itself, and the last token to the whole sequence.
        # OpenAI GPT's classifiers also read the last token.
        return batch.cu_seqlens[1:] - 1 if self.is_decoder else batch.cu_seqlens[:-1]

    def _pad(self, rows: Tensor) -> Tensor:
        """Append rows of zeros if the layers need them."""
        first = self.layers[0]
        assert isinstance(first, Layer)
        return pad_rows(rows, first.qkv)

    def _run(
        self,
        layer: nn.Module,
        hidden: Tensor,
        batch: PackedBatch,
        positions: Tensor | None = None,
        one_per_sequence: bool = False,
    ) -> Tensor:
        arguments = (hidden, batch, positions, one_per_sequence)
        if self.gradient_checkpointing and self.training:
            return checkpoint(layer, *arguments, use_reentrant=False)
        return layer(*arguments)


class Embeddings(nn.Module):
    """Token, segment and position embeddings (Figure 2), summed and normalized."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: PackedBatch, words: Tensor | None = None) -> Tensor:
        """Embed the tokens of a batch, (T, H).

        `words` are their word embeddings, if known.

        Raises:
            ModelError: the model has only one segment, and the batch has pairs of texts.
        """
        check_segments(batch.token_type_ids, self.token_type_embeddings.num_embeddings)
        if words is None and _can_infer(self, self.norm.weight):
            tables = self.word_embeddings, self.token_type_embeddings, self.position_embeddings
            return embed_and_normalize(batch, *tables, self.norm)  # (T, H)
        embedded = (
            (self.word_embeddings(batch.input_ids) if words is None else words)
            + self.position_embeddings(batch.position_ids)
            + self.token_type_embeddings(batch.token_type_ids)
        )  # (T, H)
        return self.dropout(self.norm(embedded))  # (T, H)


class Layer(nn.Module):
    """A Transformer layer: self-attention, then a feed-forward network.

    Each of the two is followed by dropout, a residual connection and a norm.
    """

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
        self.activation = build_activation(config)

    def forward(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        positions: Tensor | None = None,
        one_per_sequence: bool = False,
    ) -> Tensor:
        """Transform (T, H) into (T, H), or only the tokens at `positions`, (R, H).

        With `one_per_sequence`, `positions` has one token of each sequence, in a causal model its last.
        """
        infers = _can_infer(self, hidden)
        attended = self._attend(hidden, batch, positions if one_per_sequence else None, infers)  # (T or R, H)
        if positions is not None:  # from here on tokens are independent of each other
            hidden = hidden.index_select(0, positions)  # (R, H)
            if not one_per_sequence:
                attended = attended.index_select(0, positions)  # (R, H)
        if infers:
            hidden = linear_and_norm(attended, self.attention_output, hidden, self.attention_norm)
            widened = linear_and_activation(hidden, self.intermediate, self.activation)  # (T or R, 4H)
            return linear_and_norm(widened, self.output, hidden, self.output_norm)  # (T or R, H)
        if self.training and is_exact_gelu(self.activation):
            if can_fuse(hidden):
                return transform_attended(attended, hidden, *self._after_attention())  # (T or R, H)
            if can_transform_on_gpu(hidden):
                from bertie.model import gpu_training  # needs Triton

                return gpu_training.transform_attended(attended, hidden, *self._after_attention())
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(attended)))  # (T or R, H)
        widened = self.intermediate(hidden)  # (T or R, 4H)
        if self.training and widened.device.type == "cpu":
            # Computing the activation again in the backward pass is cheap, and saves its memory.
            narrowed = checkpoint(self._narrow, widened, use_reentrant=False, preserve_rng_state=False)
        else:
            narrowed = self._narrow(widened)
        return self.output_norm(hidden + self.dropout(narrowed))  # (T or R, H)

    def _attend(self, hidden: Tensor, batch: PackedBatch, queries: Tensor | None, infers: bool) -> Tensor:
        """Attend from all tokens, (T, H), or from the tokens at `queries`, (R, H)."""
        H, A = hidden.shape[1], self.num_heads
        dropout_p = self.attention_dropout if self.training else 0.0
        if queries is not None and hidden.device.type == "cpu":
            return pad_rows(pooling_attention(hidden, queries, self.qkv, batch, A, dropout_p), self.qkv)
        if infers and can_attend(H // A):
            return inference_attention(hidden, self.qkv, batch, A, self.is_decoder)
        if self.training and can_fuse(hidden):
            qkv = linear(hidden, self.qkv.weight, self.qkv.bias)  # (T, 3H)
        else:
            qkv = self.qkv(hidden)  # (T, 3H)
        attended = packed_attention(qkv, batch, A, dropout_p, self.is_decoder)  # (T, H)
        return attended if queries is None else attended.index_select(0, queries)  # (T or R, H)

    def _after_attention(self) -> tuple[LayerWeights, float, float]:
        """Return the weights after attention, the norms' epsilon, and dropout.

        Dropout is its probability.
        """
        weights = LayerWeights(
            *(self.attention_output.weight, self.attention_output.bias),
            *(self.attention_norm.weight, self.attention_norm.bias),
            *(self.intermediate.weight, self.intermediate.bias),
            *(self.output.weight, self.output.bias),
            *(self.output_norm.weight, self.output_norm.bias),
        )
        return weights, self.output_norm.eps, self.dropout.probability

    def _narrow(self, widened: Tensor) -> Tensor:
        return self.output(self.activation(widened))  # (T or R, H)


def _can_infer(module: nn.Module, values: Tensor) -> bool:
    """Return whether a module computes the layers of `cpu_inference`.

    It does only in inference mode: FSDP could not free the memory of weights after `Tensor.numpy`.
    """
    return can_fuse_inference(values) and not module.training and torch.is_inference_mode_enabled()


def build_activation(config: BertConfig) -> nn.Module:
    """Return the configured activation; the paper's is GELU (Appendix A.2)."""
    activations: dict[Activation, nn.Module] = {
        "gelu": nn.GELU(),
        "gelu_new": nn.GELU(approximate="tanh"),
        "relu": nn.ReLU(),
        "tanh": nn.Tanh(),
        "linear": nn.Identity(),
    }
    return activations[config.hidden_act]


def add_bilstm(bert: BertModel, config: BertConfig) -> None:
    """Put a BiLSTM with random weights on top of the encoder (Table 5, last row).

    The paper does not give the size of the BiLSTM. Here it has one layer. Its two directions
    together are as wide as the encoder, so that the heads keep their shapes.

    Raises:
        SettingsError: the hidden size is odd.
    """
    if config.hidden_size % 2:
        raise SettingsError(
            f"bilstm: the hidden size {config.hidden_size} is odd, but the two directions share it equally; "
            f"use a model with an even hidden size"
        )
    bert.bilstm = BiLSTM(config.hidden_size, config.hidden_size // 2, num_layers=1, dropout=0.0)


def initialize(module: nn.Module, config: BertConfig) -> None:
    """Draw the weights from a truncated normal distribution, and zero the biases.

    The distribution is cut at two standard deviations. As in TensorFlow's
    truncated_normal_initializer (modeling.py:375), `config.initializer_range` is the standard
    deviation before the cut.
    """
    for name, part in module.named_modules():
        std = config.initializer_range
        if name.endswith("position_embeddings") and config.position_initializer_range is not None:
            std = config.position_initializer_range
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
