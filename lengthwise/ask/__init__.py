"""Measure a large language model behind an OpenAI-compatible endpoint on fresh problems of a task.

inquiry    Inquiry, items(...) → Item       the configuration; problems as text
           scores(...)                      rows like those of ``Score.row``
folder     InquiryRun                       the inquiry's folder; each reply is saved at once
client     Client.ask(prompt) → reply       one request, and the meaning of its errors
           Key                              the endpoint's key, which is never written to a file
asking     collect(...) → Outcome           asks all prompts without a reply, several at a time
"""
