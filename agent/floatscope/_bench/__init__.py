"""What recorders cost a training: the measurements behind ``floatscope bench``. Importing this imports no torch."""
