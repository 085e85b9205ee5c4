"""Which cell a request goes to, where several Schedulers with their own workers stand behind the ingresses."""
