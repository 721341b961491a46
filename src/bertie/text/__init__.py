"""Split text into sentences and WordPiece tokens, and learn vocabularies."""
