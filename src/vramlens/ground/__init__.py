"""The ground floor: words and rules that every other package shares. Standard library only."""
