// The known patterns of attention heads: to the next token, to the previous one, to [SEP], and to
// other occurrences of the same token. See Clark et al., 2019, "What Does BERT Look At?", arXiv:1906.04341.

// A head has a pattern if the tokens give, on average, more than this share of their attention to the
// pattern's targets. Section 3.1 of the paper counts the heads above a half.
export const LEAST_WEIGHT = 0.5;
// In a short text even a head that looks everywhere alike gives much weight to [SEP]; so the average must
// also be this many times the share that such a head would give.
export const TIMES_UNIFORM = 2;

const SPECIAL = new Set(["[CLS]", "[SEP]"]);

// For each pattern, the positions that the token at position `i` looks at; none: it does not count.
export const PATTERNS = [
  { name: "next token", short: "next", targets: (tokens, i) => (i + 1 < tokens.length ? [i + 1] : []) },
  { name: "previous token", short: "prev.", targets: (tokens, i) => (i > 0 ? [i - 1] : []) },
  { name: "[SEP]", short: "[SEP]", targets: (tokens) => positions(tokens, "[SEP]") },
  { name: "same word elsewhere", short: "same",
    targets: (tokens, i) => positions(tokens, tokens[i]).filter((j) => j !== i) },
];

const positions = (tokens, token) => tokens.flatMap((each, j) => (each === token ? [j] : []));

// Measure every pattern in every head. [CLS] and [SEP] are no tokens of the text, so their own
// attention does not count. Returns for each pattern {pattern, heads}, with the heads strongest first:
// {layer, head, weight, found}. A pattern that this text cannot show has no heads.
export function measurePatterns(tokens, attentions) {
  return PATTERNS.map((pattern) => {
    const counted = tokens
      .map((token, i) => ({ i, targets: SPECIAL.has(token) ? [] : pattern.targets(tokens, i) }))
      .filter(({ targets }) => targets.length);
    if (!counted.length) return { pattern, heads: [] };
    const mean = (weigh) => counted.reduce((sum, row) => sum + weigh(row), 0) / counted.length;
    const uniform = mean(({ targets }) => targets.length / tokens.length);
    const least = Math.max(LEAST_WEIGHT, TIMES_UNIFORM * uniform);
    const heads = attentions.flatMap((matrices, layer) => matrices.map((matrix, head) => {
      const weight = mean(({ i, targets }) => targets.reduce((sum, j) => sum + matrix[i][j], 0));
      return { layer, head, weight, found: weight > least };
    }));
    return { pattern, heads: heads.sort((a, b) => b.weight - a.weight) };
  });
}
