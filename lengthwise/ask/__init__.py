"""A large language model as a row: fresh problems of a task → an OpenAI-compatible endpoint → replies → scores.

inquiry    Inquiry, items(...) → Item       what is asked of which model; problems as people write them
folder     Asked                            the inquiry's folder; each reply is kept at once
key        Key                              the secret, which stands in no file
client     Client.ask(prompt) → reply       one request, and what its failure means
asking     collect(...) → Outcome           asks what has no reply yet, several prompts at a time
scoring    scores(...)                      rows as ``Score.row`` has them
"""
