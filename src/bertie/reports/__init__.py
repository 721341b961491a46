"""HTML reports of runs, with pictures drawn from their metrics."""
