"""GGUF files, of llama.cpp and Ollama: written of a saved model, and read as one."""
