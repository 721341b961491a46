"""The public Python API: make tokenizers, corpora and models, and evaluate models.

`import bertie` exposes these functions, except `plan_pretraining`.
"""
