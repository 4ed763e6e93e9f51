"""Files and folders that store tensors and no program: their sizes, read from headers alone."""
