"""Small files that are replaced as a whole: the broker's state files, the checkpoint, and the `abort` file,
which tells a start how the previous run ended.
It may use the files.
It must not know what the state means: the tables of the broker do."""
