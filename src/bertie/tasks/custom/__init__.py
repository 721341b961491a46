"""Custom data: tables with named columns, for every family of tasks."""
