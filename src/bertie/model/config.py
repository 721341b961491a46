"""The shape of a BERT network. The published sizes are recipes: `recipes/*.toml`."""

from typing import Literal

import pydantic

from bertie.base.settings import Settings

# The problem of a sequence classifier, with the names of config.json in `transformers`.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
# The input of a sequence classifier: the pooled [CLS], or the mean over the tokens, scaled to length 1.
ClassifierPooling = Literal["pooler", "mean"]

# With the names of `transformers`.
Activation = Literal["gelu", "gelu_new", "relu", "tanh", "linear"]

# Far beyond every Transformer so far. A damaged or hostile config.json is refused before memory is allocated.
MAX_LAYERS, MAX_SIZE, MAX_VOCABULARY = 1024, 2**20, 2**26


class BertConfig(Settings):
    """The shape of a BERT network (Section 3), with the keys of `bert_config.json`.

    The defaults describe BERT-Base, uncased. Instances are immutable: `model_copy(update=...)`
    returns a changed copy. Unknown keys and impossible values raise a `pydantic.ValidationError`.

    Attributes:
        vocab_size: number of WordPiece tokens, V.
        hidden_size: size of a token's vector, H; a multiple of `num_attention_heads`.
        num_hidden_layers: number of Transformer layers, L.
        num_attention_heads: attention heads of a layer, A.
        intermediate_size: width of the feed-forward sublayer; 4H in the paper.
        hidden_act: the activation of the feed-forward sublayers and of the masked-LM head. `gelu`
            is the exact form, with which the published checkpoints were trained; `gelu_new` is the
            tanh approximation, which Google's code has used since February 2019 (bee6030). `relu`,
            `tanh` and `linear` (none) are the other choices of Google's code
            (modeling.get_activation).
        hidden_dropout_prob: dropout of the embeddings and of each sublayer's output.
        attention_probs_dropout_prob: dropout of the attention weights.
        max_position_embeddings: length of the longest sequence, in tokens.
        type_vocab_size: number of segments; 2 where the model reads pairs of texts.
        initializer_range: standard deviation of the initial weights.
        position_initializer_range: the same for the position embeddings
            (docs/decisions/small_recipes.md); None for `initializer_range`, as in Google's code.
        layer_norm_eps: epsilon of the layer norms.
        is_decoder: whether attention is causal, as in Table 5's left-to-right model.

    Example:
        >>> from bertie import BertConfig
        >>> mini = BertConfig(
        ...     hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
        ... )
        >>> mini.max_position_embeddings
        512
    """

    vocab_size: int = pydantic.Field(default=30522, gt=0, le=MAX_VOCABULARY)
    hidden_size: int = pydantic.Field(default=768, gt=0, le=MAX_SIZE)
    num_hidden_layers: int = pydantic.Field(default=12, gt=0, le=MAX_LAYERS)
    num_attention_heads: int = pydantic.Field(default=12, gt=0, le=MAX_SIZE, validate_default=True)
    intermediate_size: int = pydantic.Field(default=3072, gt=0, le=MAX_SIZE)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = pydantic.Field(default=512, gt=0, le=MAX_SIZE)
    type_vocab_size: int = pydantic.Field(default=2, gt=0, le=MAX_SIZE)
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    position_initializer_range: float | None = pydantic.Field(default=None, gt=0)
    layer_norm_eps: float = pydantic.Field(default=1e-12, gt=0)
    is_decoder: bool = False  # as `transformers` calls it

    @pydantic.field_validator("num_attention_heads")
    @classmethod
    def _heads_divide_hidden_size(cls, heads: int, info: pydantic.ValidationInfo) -> int:
        size = info.data.get("hidden_size", heads)  # absent if it is invalid
        if size % heads:
            divisors = (number for number in range(1, size + 1) if size % number == 0)
            nearest = min(divisors, key=lambda number: abs(number - heads))
            raise ValueError(f"expected a divisor of hidden_size {size}, such as {nearest}")
        return heads
