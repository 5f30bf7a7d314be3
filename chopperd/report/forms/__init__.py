"""The report document as JSON, CSV, Parquet, pandas frames and counter tracks."""
