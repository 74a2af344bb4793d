// No validator: it would be asked over the network.
SwaggerUIBundle({
  url: "api-doc/openapi.json",
  dom_id: "#routes",
  deepLinking: true,
  docExpansion: "list",
  tryItOutEnabled: true,
  validatorUrl: null,
});
