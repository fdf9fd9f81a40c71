"""From DataFrames to Parquet, and from Parquet to the batches of each rank."""
