package feature

var fileFeatures = []Feature{}
