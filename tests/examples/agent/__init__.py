"""The example of an agent: docs/tutorial/agent.md."""
