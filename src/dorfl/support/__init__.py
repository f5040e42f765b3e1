"""What every part stands on: types, threads, files, the wire format. Nothing of learning."""
