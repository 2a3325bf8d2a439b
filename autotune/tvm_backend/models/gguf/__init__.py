"""Language models in GGUF files, as llama.cpp writes them."""
