"""How a study among sites proceeds: the transcript that sites replay."""
