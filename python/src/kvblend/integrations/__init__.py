"""kvblend in frameworks for retrieval-augmented generation. Each module needs the extra of its name: kvblend[langchain],
kvblend[llamaindex], kvblend[haystack]."""
